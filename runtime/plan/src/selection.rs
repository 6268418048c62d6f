//! The algorithms among which a caller lets a plan be chosen, by our names or by NCCL's.

use crate::carrier::Carrier;
use crate::generate::{Algorithm, GENERATORS};
use crate::nccl::{Cell, TunerAlgorithm, TunerProtocol};

/// A set of algorithms, or all algorithms but those of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The algorithms by their own names, a bit each.
    algorithms: u32,
    /// The cells of NCCL's cost table, a bit each.
    cells: u32,
    /// True if the set is what may not be chosen.
    excludes: bool,
}

const _: () = assert!(GENERATORS.len() <= 32);
const _: () = assert!(TunerAlgorithm::ALL.len() * TunerProtocol::ALL.len() <= 32);

/// The beginning of the names of NCCL's kernels for symmetric memory, of which none is here.
const SYMMETRIC: &str = "SYMK_";

impl From<Algorithm> for Selection {
    fn from(algorithm: Algorithm) -> Self {
        Self { algorithms: 1 << algorithm as u32, ..Self::default() }
    }
}

impl Selection {
    /// Reads a list of names, separated by commas; `^` before the list excludes what it names. A
    /// name is one of ours (`two_shot`), which are in small letters, or one of NCCL's in any
    /// letters: an algorithm (`RING`) or one with its protocol (`RING_LL`). NCCL's names of kernels
    /// for symmetric memory (`SYMK_…`) name nothing here. Returns `None` for an empty list; fails
    /// with the first name that is not known.
    pub fn parse(text: &str) -> Result<Option<Self>, &str> {
        let text = text.trim();
        let (excludes, list) = match text.strip_prefix('^') {
            Some(list) => (true, list),
            None => (false, text),
        };
        if list.is_empty() {
            return if excludes { Err(text) } else { Ok(None) };
        }
        let mut selection = Self { excludes, ..Self::default() };
        for name in list.split(',').map(str::trim) {
            selection.add(name).ok_or(name)?;
        }
        Ok(Some(selection))
    }

    /// Returns what [`parse`](Self::parse) accepts, for errors about other texts.
    pub fn accepted() -> String {
        let ours: Vec<_> = GENERATORS.iter().map(|generator| generator.name).collect();
        format!(
            "names of algorithms with commas between them: {}, or NCCL's {}, also with {} behind \
             them; ^ before the list excludes what it names",
            ours.join(", "),
            TunerAlgorithm::ALL.map(TunerAlgorithm::name).join(", "),
            TunerProtocol::ALL.map(|protocol| format!("_{}", protocol.name())).join(" or ")
        )
    }

    fn add(&mut self, name: &str) -> Option<()> {
        if let Some(generator) = GENERATORS.iter().find(|g| g.name == name) {
            self.algorithms |= 1 << generator.algorithm as u32;
            return Some(());
        }
        let name = name.to_ascii_uppercase();
        if name.strip_prefix(SYMMETRIC).is_some_and(|rest| !rest.is_empty()) {
            return Some(());
        }
        let protocol = TunerProtocol::ALL.into_iter().find_map(|protocol| {
            let algorithm = name.strip_suffix(protocol.name())?.strip_suffix('_')?;
            Some((algorithm, protocol))
        });
        let (algorithm, only) = match protocol {
            Some((algorithm, protocol)) => (algorithm, Some(protocol)),
            None => (name.as_str(), None),
        };
        // NCCL writes `NVLSTREE` here and `NVLS_TREE` in its logs.
        let spelling = |text: &str| text.replace('_', "");
        let row = TunerAlgorithm::ALL.into_iter();
        let row = row.into_iter().find(|row| spelling(row.name()) == spelling(algorithm))?;
        for protocol in TunerProtocol::ALL {
            if only.is_none_or(|only| only == protocol) {
                self.cells |= Self::bit(Cell { algorithm: row, protocol });
            }
        }
        Some(())
    }

    fn bit(Cell { algorithm, protocol }: Cell) -> u32 {
        1 << (algorithm as usize * TunerProtocol::ALL.len() + protocol as usize)
    }

    /// Returns whether an algorithm may be chosen where this carrier moves its data.
    pub fn contains(&self, algorithm: Algorithm, carrier: Carrier) -> bool {
        let cell = self.cells & Self::bit(Cell::of(algorithm, carrier)) != 0;
        (cell || self.algorithms & 1 << algorithm as u32 != 0) != self.excludes
    }

    /// Returns whether an algorithm may be chosen because its own name was given.
    pub fn names(&self, algorithm: Algorithm) -> bool {
        !self.excludes && self.algorithms & 1 << algorithm as u32 != 0
    }

    /// Returns the algorithm, if it is the only one that may be chosen.
    // Not inlined: where an `Option` of a selection is asked, the compiler looks at the fields and
    // at whether they are there in one comparison, which valgrind takes for a use of what is not
    // there.
    #[inline(never)]
    pub fn single(&self) -> Option<Algorithm> {
        let alone = !self.excludes && self.cells == 0 && self.algorithms.count_ones() == 1;
        let number = self.algorithms.trailing_zeros() as usize;
        alone.then(|| GENERATORS.get(number).map(|g| g.algorithm)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Selection {
        Selection::parse(text).unwrap_or_else(|name| panic!("{name}")).expect("names")
    }

    #[test]
    fn every_name_of_ours_selects_its_algorithm_alone() {
        for generator in &GENERATORS {
            let selection = read(generator.name);
            assert_eq!(selection, Selection::from(generator.algorithm));
            assert_eq!(selection.single(), Some(generator.algorithm));
            for other in &GENERATORS {
                let selected = selection.contains(other.algorithm, Carrier::Stage);
                assert_eq!(selected, other.name == generator.name);
                assert_eq!(selection.names(other.algorithm), selected);
            }
        }
    }

    #[test]
    fn names_of_nccl_select_the_plans_of_their_cells() {
        let in_place = |text| read(text).contains(Algorithm::TwoShotMapped, Carrier::InPlace);
        assert!(in_place("NVLS") && in_place("NVLS_SIMPLE") && in_place("nvls_simple"));
        assert!(!in_place("NVLS_LL") && !in_place("NVLSTREE_SIMPLE") && !in_place("RING"));
        let edges = |text, algorithm| read(text).contains(algorithm, Carrier::Edges);
        assert!(
            edges("RING", Algorithm::OneShotEdges) && edges("RING_LL", Algorithm::OneShotEdges)
        );
        assert!(!edges("ring", Algorithm::OneShotEdges) && !edges("RING_SIMPLE", Algorithm::Tree));
        assert!(
            edges("NVLSTREE", Algorithm::RailsRing) && edges("NVLS_TREE", Algorithm::RailsRing)
        );
        assert!(edges("TREE_LL128,PAT_SIMPLE", Algorithm::Halving));
        assert!(edges("TREE_LL128, PAT_SIMPLE", Algorithm::Bruck));
        assert!(edges("COLLNET_DIRECT_SIMPLE", Algorithm::Switch));
        for row in TunerAlgorithm::ALL {
            for protocol in TunerProtocol::ALL {
                let selection = read(&format!("{}_{}", row.name(), protocol.name()));
                assert_eq!((selection.cells.count_ones(), selection.single()), (1, None));
            }
            assert_eq!(read(row.name()).cells.count_ones(), 3, "{}", row.name());
        }
    }

    #[test]
    fn lists_may_exclude_and_unknown_names_are_told() {
        let all_but = read("^ring,tree");
        assert!(!all_but.contains(Algorithm::Ring, Carrier::Edges));
        assert!(all_but.contains(Algorithm::Halving, Carrier::Edges) && all_but.single().is_none());
        assert_eq!(read("SYMK_AGxLL_R"), Selection::default());
        assert_eq!(Selection::parse(""), Ok(None));
        assert_eq!(Selection::parse("  "), Ok(None));
        for (text, name) in
            [("rings", "rings"), ("ring,,tree", ""), ("^", "^"), ("RING_LL64", "RING_LL64")]
        {
            assert_eq!(Selection::parse(text), Err(name));
        }
    }

    #[test]
    fn all_names_that_are_accepted_are_told() {
        let text = Selection::accepted();
        let (_, list) = text.split_once(": ").expect("a list");
        let (list, _) = list.split_once(", also with _LL or _LL128 or _SIMPLE").expect("protocols");
        let told: Vec<_> = list.replace("or NCCL's ", "").split(", ").map(str::to_owned).collect();
        let ours = GENERATORS.iter().map(|generator| generator.name);
        let names: Vec<_> = ours.chain(TunerAlgorithm::ALL.map(TunerAlgorithm::name)).collect();
        assert_eq!(told, names);
    }
}
