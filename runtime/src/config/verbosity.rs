//! The choice of what is logged: levels and subsystems, by NCCL's names.

/// Log levels, with the numbers that plugins get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
#[allow(missing_docs, reason = "the names are NCCL's")]
pub enum Level {
    None = 0,
    Version = 1,
    Warn = 2,
    Info = 3,
    Abort = 4,
    Trace = 5,
}

const LEVELS: [(&str, Level); 6] = [
    ("NONE", Level::None),
    ("VERSION", Level::Version),
    ("WARN", Level::Warn),
    ("INFO", Level::Info),
    ("ABORT", Level::Abort),
    ("TRACE", Level::Trace),
];

impl Level {
    /// Returns the level of this name, in upper or lower case.
    pub fn named(name: &str) -> Option<Self> {
        LEVELS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, level)| *level)
    }

    /// Returns the name of the level, in capitals.
    pub fn name(self) -> &'static str {
        LEVELS[self as usize].0
    }
}

/// The subject of a line, with the bits that plugins get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
#[allow(missing_docs, reason = "the names are NCCL's")]
pub enum Subsystem {
    Init = 0x1,
    Coll = 0x2,
    P2p = 0x4,
    Shm = 0x8,
    Net = 0x10,
    Graph = 0x20,
    Tuning = 0x40,
    Env = 0x80,
    Alloc = 0x100,
    Call = 0x200,
    Proxy = 0x400,
    Nvls = 0x800,
    Bootstrap = 0x1000,
    Reg = 0x2000,
    Profile = 0x4000,
    Ras = 0x8000,
    Destroy = 0x10000,
    AllocHost = 0x20000,
}

impl Subsystem {
    /// Returns the first subsystem whose bit is set.
    pub(crate) fn of_bits(bits: u64) -> Option<Self> {
        SUBSYSTEMS.iter().map(|(_, about)| *about).find(|about| bits & *about as u64 != 0)
    }
}

const SUBSYSTEMS: [(&str, Subsystem); 18] = [
    ("INIT", Subsystem::Init),
    ("COLL", Subsystem::Coll),
    ("P2P", Subsystem::P2p),
    ("SHM", Subsystem::Shm),
    ("NET", Subsystem::Net),
    ("GRAPH", Subsystem::Graph),
    ("TUNING", Subsystem::Tuning),
    ("ENV", Subsystem::Env),
    ("ALLOC", Subsystem::Alloc),
    ("CALL", Subsystem::Call),
    ("PROXY", Subsystem::Proxy),
    ("NVLS", Subsystem::Nvls),
    ("BOOTSTRAP", Subsystem::Bootstrap),
    ("REG", Subsystem::Reg),
    ("PROFILE", Subsystem::Profile),
    ("RAS", Subsystem::Ras),
    ("DESTROY", Subsystem::Destroy),
    ("ALLOC_HOST", Subsystem::AllocHost),
];

/// Returns the bits of a list: `A,B`, `^A,B` for all others, `ALL`. `None` for an unknown name.
fn listed(text: &str, bit: impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let text = text.trim();
    let (inverted, names) = match text.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, text),
    };
    let mut bits = 0;
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        bits |= if name.eq_ignore_ascii_case("ALL") { u64::MAX } else { bit(name)? };
    }
    Some(if inverted { !bits } else { bits })
}

/// A set of subsystems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems(u64);

impl Subsystems {
    /// Returns one bit per subsystem.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Reads a list as in `NCCL_DEBUG_SUBSYS`.
    pub fn listed(text: &str) -> Option<Self> {
        let known = |name: &str| SUBSYSTEMS.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
        listed(text, |name| known(name).map(|(_, subsystem)| *subsystem as u64)).map(Self)
    }
}

/// A set of levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels(u64);

impl Levels {
    /// Reads a list as in `NCCL_DEBUG_TIMESTAMP_LEVELS`.
    pub fn listed(text: &str) -> Option<Self> {
        listed(text, |name| Level::named(name).map(|level| 1 << level as u64)).map(Self)
    }

    /// Returns whether the set contains a level.
    pub fn contains(self, level: Level) -> bool {
        self.0 & (1 << level as u64) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_agree_with_the_enums() {
        for (i, (name, level)) in LEVELS.into_iter().enumerate() {
            assert_eq!((level as usize, level.name()), (i, name));
        }
        for (i, (name, subsystem)) in SUBSYSTEMS.into_iter().enumerate() {
            assert_eq!(subsystem as u64, 1 << i, "{name}");
        }
    }

    #[test]
    fn lists_select_exclude_and_take_all() {
        let bits = |text| Subsystems::listed(text).map(Subsystems::bits);
        assert_eq!(bits("INIT, net"), Some(0x11));
        assert_eq!(bits("^COLL,P2P"), Some(!0x6));
        assert_eq!((bits("ALL"), bits("^ALL")), (Some(u64::MAX), Some(0)));
        assert_eq!((bits("INIT,NOTHING"), bits("")), (None, Some(0)));
        let levels = Levels::listed("WARN,TRACE").unwrap();
        assert!(levels.contains(Level::Warn) && !levels.contains(Level::Info));
        assert!(Levels::listed("^WARN").unwrap().contains(Level::Info));
    }
}
