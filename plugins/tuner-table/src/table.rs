//! Tables of rules, in the format of NVIDIA's example of a tuner: a line per rule,
//! `collective,min_bytes,max_bytes,algorithm,protocol,channels,nodes,ranks[,pipe_ops[,reg_buff]]`,
//! where −1 stands for any number; `#` begins a comment.

use oxccl_plan::Collective;
use oxccl_plan::nccl::{Cell, TunerAlgorithm, TunerProtocol, tunable};
use std::fmt;

/// A line that is not a rule.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("line {line}: {field} is {found:?}; expected {expected}")]
pub struct Error {
    line: usize,
    field: &'static str,
    found: String,
    expected: String,
}

/// A number that a rule asks for; `None` admits any.
pub type Wanted = Option<i64>;

/// A rule: the cell of the cost table for some calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The collective.
    pub collective: Collective,
    /// The least and the most bytes of the larger buffer.
    pub bytes: (u64, u64),
    /// The cell, whose plan is to run.
    pub cell: Cell,
    /// The number of channels; `None` leaves it to the library.
    pub channels: Wanted,
    /// The numbers of hosts, of ranks, and of operations in a group.
    pub nodes: Wanted,
    /// See `nodes`.
    pub ranks: Wanted,
    /// See `nodes`.
    pub pipe_ops: Wanted,
    /// 1 for buffers that are registered, 0 for others.
    pub registered: Wanted,
}

/// A call, as tuners are asked about it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// NCCL's number of the collective.
    pub function: i32,
    /// The bytes of the larger buffer.
    pub bytes: u64,
    /// The operations in a group.
    pub pipe_ops: i64,
    /// 1 for buffers that are registered; `None` in versions that do not tell.
    pub registered: Wanted,
}

fn any_or(number: Wanted) -> i64 {
    number.unwrap_or(-1)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.collective.name().replace('_', "");
        let (first, last) = self.bytes;
        let Cell { algorithm, protocol } = self.cell;
        let (algorithm, protocol) = (algorithm.name(), protocol.name());
        let cell = format!("{algorithm},{protocol}").to_lowercase();
        let numbers = [self.channels, self.nodes, self.ranks, self.pipe_ops, self.registered];
        let numbers = numbers.map(|number| any_or(number).to_string()).join(",");
        write!(f, "{name},{first},{last},{cell},{numbers}")
    }
}

impl Rule {
    /// Returns whether the rule is about a call of a communicator with so many hosts and ranks.
    pub fn is_about(&self, call: &Call, (nodes, ranks): (usize, usize)) -> bool {
        let admits = |wanted: Wanted, is: i64| wanted.is_none_or(|wanted| wanted == is);
        tunable(self.collective).map(|number| number as i32) == Some(call.function)
            && (self.bytes.0..=self.bytes.1).contains(&call.bytes)
            && admits(self.nodes, nodes as i64)
            && admits(self.ranks, ranks as i64)
            && admits(self.pipe_ops, call.pipe_ops)
            && call.registered.is_none_or(|is| admits(self.registered, is))
    }
}

/// Reads a table. Fails at the first line that is neither a rule, nor empty, nor a comment.
pub fn read(text: &str) -> Result<Vec<Rule>, Error> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let content = numbered.map(|(at, line)| (at, line.split('#').next().unwrap_or("").trim()));
    content.filter(|(_, line)| !line.is_empty()).map(|(at, line)| rule(at, line)).collect()
}

fn rule(line: usize, text: &str) -> Result<Rule, Error> {
    let fields: Vec<&str> = text.split(',').map(str::trim).collect();
    let wrong = |field, found: &str, expected: String| {
        let found = found.to_owned();
        Error { line, field, found, expected }
    };
    if !(8..=10).contains(&fields.len()) {
        let number = fields.len().to_string();
        return Err(wrong("the number of fields", &number, "8 to 10".to_owned()));
    }
    let named = |field, at: usize, names: &[&str]| {
        let is =
            |name: &&str| name.replace('_', "").eq_ignore_ascii_case(&fields[at].replace('_', ""));
        let expected = || wrong(field, fields[at], format!("one of {}", names.join(", ")));
        names.iter().position(is).ok_or_else(expected)
    };
    let bytes = |field, at: usize| {
        let expected = || wrong(field, fields[at], "a number of bytes".to_owned());
        fields[at].parse::<u64>().map_err(|_| expected())
    };
    let number = |field, at: usize| match fields.get(at).copied().unwrap_or("-1") {
        "-1" => Ok(None),
        text => {
            let read = text.parse::<i64>().ok().filter(|number| *number >= 0);
            read.map(Some).ok_or_else(|| wrong(field, text, "a number, or -1 for any".to_owned()))
        }
    };
    let collectives: Vec<Collective> =
        Collective::ALL.into_iter().filter(|c| tunable(*c).is_some()).collect();
    let names: Vec<&str> = collectives.iter().map(|c| c.name()).collect();
    let collective = collectives[named("the collective", 0, &names)?];
    let algorithm = named("the algorithm", 3, &TunerAlgorithm::ALL.map(TunerAlgorithm::name))?;
    let protocol = named("the protocol", 4, &TunerProtocol::ALL.map(TunerProtocol::name))?;
    Ok(Rule {
        collective,
        bytes: (bytes("the least size", 1)?, bytes("the largest size", 2)?),
        cell: Cell {
            algorithm: TunerAlgorithm::ALL[algorithm],
            protocol: TunerProtocol::ALL[protocol],
        },
        channels: number("the number of channels", 5)?,
        nodes: number("the number of hosts", 6)?,
        ranks: number("the number of ranks", 7)?,
        pipe_ops: number("the number of operations", 8)?,
        registered: number("whether buffers are registered", 9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_in_nvidias_format_and_written_so() {
        let text = "# of the example\n\nallreduce,0,65536,tree,simple,2,1,-1\n\
                    reducescatter, 1 ,2,nvls_tree,LL128,-1,-1,8,1,0 # more\n\
                    all_gather,3,4,COLLNET_DIRECT,ll,-1,2,-1,-1,1\n";
        let rules = read(text).unwrap();
        let first = &rules[0];
        assert_eq!((first.collective, first.bytes), (Collective::AllReduce, (0, 65536)));
        let Cell { algorithm, protocol } = first.cell;
        assert_eq!((algorithm.name(), protocol.name()), ("TREE", "SIMPLE"));
        assert_eq!((first.channels, first.nodes, first.ranks), (Some(2), Some(1), None));
        assert_eq!((rules[1].pipe_ops, rules[1].registered), (Some(1), Some(0)));
        let lines: Vec<String> = rules.iter().map(Rule::to_string).collect();
        assert_eq!(lines[1], "reducescatter,1,2,nvls_tree,ll128,-1,-1,8,1,0");
        assert_eq!(read(&lines.join("\n")).unwrap(), rules);
    }

    #[test]
    fn what_is_no_rule_is_named_with_its_line() {
        let text = |line: &str| read(&format!("\n{line}")).unwrap_err().to_string();
        assert_eq!(
            text("allreduce,0,1,tree,fast,1,1,1"),
            "line 2: the protocol is \"fast\"; expected one of LL, LL128, SIMPLE"
        );
        assert!(text("allreduce,0,1").contains("the number of fields is \"3\""));
        assert!(text("sendrecv,0,1,tree,ll,1,1,1").contains("the collective is \"sendrecv\""));
        assert!(text("allreduce,-5,1,tree,ll,1,1,1").contains("the least size is \"-5\""));
        assert!(text("allreduce,0,1,tree,ll,1,-2,1").contains("the number of hosts is \"-2\""));
    }

    #[test]
    fn a_rule_is_about_calls_with_all_that_it_asks_for() {
        let rule = &read("allreduce,8,64,ring,ll,-1,2,4,-1,1").unwrap()[0];
        let call = Call { function: 4, bytes: 8, pipe_ops: 1, registered: Some(1) };
        assert!(rule.is_about(&call, (2, 4)));
        assert!(rule.is_about(&Call { registered: None, bytes: 64, ..call }, (2, 4)));
        assert!(!rule.is_about(&Call { bytes: 65, ..call }, (2, 4)));
        assert!(!rule.is_about(&Call { function: 3, ..call }, (2, 4)));
        assert!(!rule.is_about(&Call { registered: Some(0), ..call }, (2, 4)));
        assert!(!rule.is_about(&call, (1, 4)) && !rule.is_about(&call, (2, 8)));
    }
}
