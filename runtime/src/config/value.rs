//! The values of variables, and their reading from text.

use super::verbosity::{Level, Levels, Subsystems};
use std::time::Duration;

/// The kind of a variable's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A switch: yes or no.
    Bool,
    /// A signed integer.
    Int,
    /// An unsigned integer.
    Uint,
    /// A time.
    Duration,
    /// Anything else.
    Text,
}

impl Kind {
    /// Returns the name for documentation.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bool => "0 or 1",
            Kind::Int => "integer",
            Kind::Uint => "unsigned",
            Kind::Duration => "duration",
            Kind::Text => "text",
        }
    }
}

/// A value in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the kinds")]
pub enum Value {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Duration(Duration),
    Text(String),
    /// No value was given, and there is no default.
    Unset,
}

impl Value {
    /// Returns the value as a number, a duration in nanoseconds; `None` for a text or no value.
    pub fn number(&self) -> Option<i128> {
        match self {
            Value::Bool(value) => Some(i128::from(*value)),
            Value::Int(value) => Some(i128::from(*value)),
            Value::Uint(value) => Some(i128::from(*value)),
            Value::Duration(value) => i128::try_from(value.as_nanos()).ok(),
            Value::Text(_) | Value::Unset => None,
        }
    }
}

impl std::fmt::Display for Value {
    /// Writes the value as in the environment; nothing if it is unset.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Unset => Ok(()),
            Value::Duration(value) => {
                let time_ns = value.as_nanos();
                let fits = UNITS.iter().find(|unit| time_ns.is_multiple_of(unit.1.into()));
                let (name, unit_ns) = fits.expect("all are multiples of a nanosecond");
                write!(f, "{}{name}", time_ns / u128::from(*unit_ns))
            }
            value => write!(f, "{}", value.number().expect("all others are numbers")),
        }
    }
}

/// Units of durations, in nanoseconds. A duration is shown in the first unit that divides it.
const UNITS: &[(&str, u64)] = &[
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A value that can be read from text.
pub(super) trait Parse: Sized {
    const KIND: Kind;
    /// A description of the texts that can be read, for errors about other texts.
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
    /// Returns the value that was read from `text`, for reports.
    fn value(&self, text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl Parse for String {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "a text";
    fn parse(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// Returns the digits and their base.
fn digits(text: &str) -> (&str, u32) {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // A sign after the prefix is no digit.
        Some(hex) if !hex.starts_with(['+', '-']) => (hex, 16),
        _ => (text, 10),
    }
}

impl Parse for u64 {
    const KIND: Kind = Kind::Uint;
    const EXPECTED: &'static str = "a number from 0 to 2^64 - 1";
    fn parse(text: &str) -> Option<Self> {
        let (digits, base) = digits(text.trim());
        u64::from_str_radix(digits, base).ok()
    }
    fn value(&self, _: &str) -> Value {
        Value::Uint(*self)
    }
}

impl Parse for i64 {
    const KIND: Kind = Kind::Int;
    const EXPECTED: &'static str = "a number from -2^63 to 2^63 - 1";
    fn parse(text: &str) -> Option<Self> {
        let (digits, base) = digits(text.trim());
        i64::from_str_radix(digits, base).ok()
    }
    fn value(&self, _: &str) -> Value {
        Value::Int(*self)
    }
}

impl Parse for Duration {
    const KIND: Kind = Kind::Duration;
    const EXPECTED: &'static str = "a duration of at most 292 years in ns, us, ms, s, m or h, as \
                                    500ms or 1.5s; without a unit it is in seconds";
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let unit = if unit.is_empty() { "s" } else { unit };
        let mut place_ns = UNITS.iter().find(|(name, _)| *name == unit)?.1;
        let number = number.trim_end();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let mut time_ns = whole.parse::<u64>().ok()?.checked_mul(place_ns)?;
        for digit in fraction.chars() {
            place_ns /= 10;
            let digit = digit.to_digit(10)?;
            if place_ns == 0 && digit != 0 {
                // If it were rounded to 0, a limit would become no limit.
                return None;
            }
            time_ns = time_ns.checked_add(u64::from(digit) * place_ns)?;
        }
        // Longer durations do not fit the C interface.
        i64::try_from(time_ns).ok().map(|_| Duration::from_nanos(time_ns))
    }
    fn value(&self, _: &str) -> Value {
        Value::Duration(*self)
    }
}

impl Parse for bool {
    const KIND: Kind = Kind::Bool;
    const EXPECTED: &'static str = "0 or 1";
    fn parse(text: &str) -> Option<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "0" | "f" | "false" | "no" | "off" => Some(false),
            "1" | "t" | "true" | "yes" | "on" => Some(true),
            _ => None,
        }
    }
    fn value(&self, _: &str) -> Value {
        Value::Bool(*self)
    }
}

/// Reads a variable without a default: an empty text is `None`.
impl<T: Parse> Parse for Option<T> {
    const KIND: Kind = T::KIND;
    const EXPECTED: &'static str = T::EXPECTED;
    fn parse(text: &str) -> Option<Self> {
        if text.is_empty() { Some(None) } else { T::parse(text).map(Some) }
    }
    fn value(&self, text: &str) -> Value {
        self.as_ref().map_or(Value::Unset, |value| value.value(text))
    }
}

/// The device of new communicators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// GPUs, where there are a driver and a GPU; else host memory.
    Auto,
    /// Host memory.
    Host,
    /// GPUs.
    Cuda,
}

impl Parse for DeviceChoice {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "auto, host or cuda";
    fn parse(text: &str) -> Option<Self> {
        match text {
            "auto" => Some(Self::Auto),
            "host" => Some(Self::Host),
            "cuda" => Some(Self::Cuda),
            _ => None,
        }
    }
}

impl Parse for Level {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "NONE, VERSION, WARN, INFO, ABORT or TRACE";
    fn parse(text: &str) -> Option<Self> {
        Level::named(text.trim())
    }
}

impl Parse for Levels {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "a list of log levels, or ALL";
    fn parse(text: &str) -> Option<Self> {
        Levels::listed(text)
    }
}

impl Parse for Subsystems {
    const KIND: Kind = Kind::Text;
    const EXPECTED: &'static str = "a list of subsystems as INIT,NET or ^COLL, or ALL";
    fn parse(text: &str) -> Option<Self> {
        Subsystems::listed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_switches_are_read_in_their_usual_spellings() {
        assert_eq!(u64::parse(" 0xfffffffffffffff0 "), Some(u64::MAX - 15));
        assert_eq!(u64::parse("18446744073709551616"), None);
        assert_eq!((u64::parse("-1"), i64::parse("-1")), (None, Some(-1)));
        assert_eq!((u64::parse("0x+1"), i64::parse("0x-1"), u64::parse("0x")), (None, None, None));
        for (text, value) in [("TRUE", true), ("on", true), ("F", false), ("0", false)] {
            assert_eq!(bool::parse(text), Some(value), "{text}");
        }
        assert_eq!((bool::parse("2"), bool::parse("perhaps")), (None, None));
    }

    #[test]
    fn durations_have_a_unit_or_are_in_seconds_and_are_shown_as_they_may_be_written() {
        for (text, ns, shown) in [
            ("5", 5_000_000_000, "5s"),
            (" 0.25 ", 250_000_000, "250ms"),
            ("500ms", 500_000_000, "500ms"),
            ("1.5s", 1_500_000_000, "1500ms"),
            ("2 m", 120_000_000_000, "120s"),
            ("0.5h", 1_800_000_000_000, "1800s"),
            ("40us", 40_000, "40us"),
            ("0.000000001", 1, "1ns"),
            ("3000000001ns", 3_000_000_001, "3000000001ns"),
            ("9223372036854775807ns", i64::MAX as u64, "9223372036854775807ns"),
            ("0", 0, "0s"),
            ("0ms", 0, "0s"),
        ] {
            let read = Duration::parse(text);
            assert_eq!(read, Some(Duration::from_nanos(ns)), "{text}");
            let value = Value::Duration(Duration::from_nanos(ns));
            assert_eq!((value.to_string().as_str(), value.number()), (shown, Some(i128::from(ns))));
            assert_eq!(Duration::parse(shown), read, "{shown}");
        }
        let bad = "2x soon -1 -1s 1e3 0x10 inf nan . .5s s 1.2.3 1s2 5S 1,5s 1.-5 0.1ns 1.0005us \
                   0.0000000001 9223372036854775808ns 18446744073709551615 99999999999999999999s";
        for text in bad.split(' ') {
            assert_eq!(Duration::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_variable_without_default_is_unset_or_read_strictly() {
        assert_eq!(Option::<i64>::parse(""), Some(None));
        assert_eq!(Option::<i64>::parse("7"), Some(Some(7)));
        assert_eq!(Option::<i64>::parse("seven"), None);
        assert_eq!(Some(7i64).value("7").to_string(), "7");
        assert_eq!(None::<i64>.value("").to_string(), "");
    }
}
