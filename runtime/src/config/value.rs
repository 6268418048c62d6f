//! What variables hold, and how it is read from text.

use crate::log::{Level, Levels, Subsystems};

/// What a variable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Yes or no.
    Bool,
    /// A signed integer.
    Int,
    /// An unsigned integer.
    Uint,
    /// Anything else.
    Text,
}

impl Kind {
    /// The name for documentation.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bool => "0 or 1",
            Kind::Int => "integer",
            Kind::Uint => "unsigned",
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
    Text(String),
    /// Neither given, nor is there a default.
    Unset,
}

impl Value {
    /// As a number; None for a text.
    pub fn number(&self) -> Option<i128> {
        match self {
            Value::Bool(value) => Some(i128::from(*value)),
            Value::Int(value) => Some(i128::from(*value)),
            Value::Uint(value) => Some(i128::from(*value)),
            Value::Text(_) | Value::Unset => None,
        }
    }
}

impl std::fmt::Display for Value {
    /// As it would be written in the environment; empty when unset.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Unset => Ok(()),
            value => write!(f, "{}", value.number().expect("all others are numbers")),
        }
    }
}

/// How a value is read from text.
pub(super) trait Parse: Sized {
    const KIND: Kind;
    /// What can be read, for the complaint about what cannot.
    const EXPECTED: &'static str;
    fn parse(text: &str) -> Option<Self>;
    /// What was read from `text`, for whoever wants to see it.
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

/// The digits and their base.
fn digits(text: &str) -> (&str, u32) {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // A sign behind the prefix is no digit.
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

/// Of variables without a default: nothing given is None.
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
    fn a_variable_without_default_is_unset_or_read_strictly() {
        assert_eq!(Option::<i64>::parse(""), Some(None));
        assert_eq!(Option::<i64>::parse("7"), Some(Some(7)));
        assert_eq!(Option::<i64>::parse("seven"), None);
        assert_eq!(Some(7i64).value("7").to_string(), "7");
        assert_eq!(None::<i64>.value("").to_string(), "");
    }
}
