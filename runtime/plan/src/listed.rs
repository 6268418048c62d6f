//! Enums that know all their variants.

/// Defines an enum with the number and the name of each variant, and the list of all: so that a new
/// variant is in the list. The numbers are the places in the list.
macro_rules! listed {
    (
        $(#[$meta:meta])*
        enum $name:ident, named $(#[$of_name:meta])* {
            $($(#[$doc:meta])* $variant:ident = $number:literal, $text:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant = $number,)*
        }

        impl $name {
            /// All variants, by number.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$variant),*];

            $(#[$of_name])*
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        const _: () = {
            let mut number = 0;
            while number < $name::ALL.len() {
                assert!($name::ALL[number] as usize == number);
                number += 1;
            }
        };
    };
}

pub(crate) use listed;
