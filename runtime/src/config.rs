//! The one table of environment variables. Nothing else in the library reads the environment.

use std::sync::OnceLock;

/// A row of the table, for documentation.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// Default, as it would be written.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// How a value is read from text.
trait Parse: Sized {
    fn parse(text: &str) -> Option<Self>;
}

impl Parse for String {
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

impl Parse for u64 {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

impl Parse for bool {
    fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "0" | "no" | "false" | "off" => Some(false),
            "1" | "yes" | "true" | "on" => Some(true),
            _ => None,
        }
    }
}

macro_rules! variables {
    ($($(#[doc = $doc:literal])+ $field:ident: $t:ty = $name:literal, $default:literal;)*) => {
        /// The values of all variables, read once at the first use of the library.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($(#[doc = $doc])+ pub $field: $t,)*
            /// Complaints about values that could not be read.
            pub warnings: Vec<String>,
        }

        /// All variables.
        pub static VARIABLES: &[Variable] = &[
            $(Variable { name: $name, default: $default, doc: concat!($($doc),+) },)*
        ];

        impl Config {
            /// Takes the values from `lookup`; a value that cannot be read leaves the default.
            pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Self {
                let mut warnings = Vec::new();
                $(let $field = read::<$t>($name, $default, &lookup, &mut warnings);)*
                Self { $($field,)* warnings }
            }
        }
    };
}

fn read<T: Parse>(
    name: &str,
    default: &str,
    lookup: &impl Fn(&str) -> Option<String>,
    warnings: &mut Vec<String>,
) -> T {
    if let Some(text) = lookup(name) {
        match T::parse(&text) {
            Some(value) => return value,
            None => warnings.push(format!("{name}={text} cannot be read; using {default:?}")),
        }
    }
    T::parse(default).expect("the default of a variable parses")
}

variables! {
    /// Log level: NONE, VERSION, WARN, INFO or TRACE.
    debug: String = "NCCL_DEBUG", "WARN";
    /// Device of new communicators: auto, host or cuda.
    device: String = "OXCCL_DEVICE", "auto";
    /// Interfaces to use: a list of prefixes; `^` excludes, `=` takes names exactly.
    socket_ifname: String = "NCCL_SOCKET_IFNAME", "";
    /// Address family: AF_INET or AF_INET6; empty takes either.
    socket_family: String = "NCCL_SOCKET_FAMILY", "";
    /// Address `host:port` of the rendezvous, which then needs no unique id to be passed around.
    comm_id: String = "NCCL_COMM_ID", "";
    /// File (mode 0600) with the job's secret for NCCL_COMM_ID, or with a whole unique id.
    secret_file: String = "OXCCL_SECRET_FILE", "";
    /// 1 lets NCCL_COMM_ID listen beyond loopback without a secret.
    insecure: bool = "OXCCL_INSECURE", "0";
    /// What tells hosts apart; ranks with equal values share memory. Default: this boot and
    /// network namespace.
    hostid: String = "NCCL_HOSTID", "";
    /// Seconds that initialisation waits for all ranks.
    init_timeout_s: u64 = "OXCCL_INIT_TIMEOUT", "60";
    /// Milliseconds that an operation may wait for a peer; 0 waits for ever.
    timeout_ms: u64 = "OXCCL_TIMEOUT", "0";
    /// Algorithm to use wherever it serves, for example `ring`; empty leaves it to the cost model.
    algorithm: String = "OXCCL_ALGORITHM", "";
    /// First value of all counters between ranks; for tests of their wrap-around.
    counter_start: u64 = "OXCCL_COUNTER_START", "0";
    /// Gibibytes of address space from which oxcclMemAlloc and ncclMemAlloc take memory; 0 means
    /// twice the machine's memory.
    arena_gib: u64 = "OXCCL_ARENA_GIB", "0";
    /// This process's rank, as set by `oxccl run`.
    rank: String = "OXCCL_RANK", "";
    /// The number of ranks, as set by `oxccl run`.
    nranks: String = "OXCCL_NRANKS", "";
    /// This process's rank on its host, as set by `oxccl run`.
    local_rank: String = "OXCCL_LOCAL_RANK", "";
    /// Folder for the files through which launched processes find each other.
    rendezvous: String = "OXCCL_RENDEZVOUS", "";
}

/// Whether the program runs with rights that its caller does not have (set-user-id and the like).
fn secure() -> bool {
    // SAFETY: the function takes any number and only reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Such a program takes no paths from its caller.
fn admitted(name: &str, secure: bool) -> bool {
    !secure || !["OXCCL_SECRET_FILE", "OXCCL_RENDEZVOUS"].contains(&name)
}

impl Config {
    /// The process's values.
    pub fn get() -> &'static Config {
        static CONFIG: OnceLock<Config> = OnceLock::new();
        CONFIG.get_or_init(|| {
            Config::from_lookup(|name| {
                std::env::var(name).ok().filter(|_| admitted(name, secure()))
            })
        })
    }
}

/// Reads a variable that belongs to a launcher (`OMPI_…`, `SLURM_…`), not to this library.
pub fn launcher_variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_taken_where_the_caller_has_fewer_rights() {
        assert!(admitted("OXCCL_SECRET_FILE", false) && admitted("NCCL_DEBUG", true));
        assert!(!admitted("OXCCL_SECRET_FILE", true) && !admitted("OXCCL_RENDEZVOUS", true));
    }

    #[test]
    fn values_come_from_the_lookup_and_bad_ones_are_reported() {
        let config = Config::from_lookup(|name| match name {
            "OXCCL_TIMEOUT" => Some("1500".to_owned()),
            "OXCCL_INSECURE" => Some("perhaps".to_owned()),
            "OXCCL_COUNTER_START" => Some("0xfffffffffffffff0".to_owned()),
            _ => None,
        });
        assert_eq!((config.timeout_ms, config.insecure), (1500, false));
        assert_eq!(config.counter_start, u64::MAX - 15);
        assert_eq!(config.warnings, ["OXCCL_INSECURE=perhaps cannot be read; using \"0\""]);
    }
}
