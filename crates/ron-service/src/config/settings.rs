//! A settings struct is the table of its keys: [`settings!`](crate::settings) makes both from one
//! list, so that a key, its type, its bounds and its help are written once.

/// Declares a settings struct. A row reads
///
/// ```text
/// /// What the key means: the text of --help, of the example file and of the documentation.
/// "queues.commits" => commits: usize = "1024", range("1", "65536"), reloadable;
/// ```
///
/// The type ([`Setting`](crate::config::Setting)) decides the form of the value. A key without a
/// default is required, unless its type is an `Option` or a list. The rules are the builder
/// functions of [`Key`](crate::Key): `range` (inclusive, as typed; the length of text), `secret`, `required`, and
/// one of `reloadable` and `restart(Why)` with a variant of [`Restart`](crate::config::Restart), except in
/// `[[blocks]]`. `..witness: WitnessKeys;` at the end includes the keys of another settings
/// struct.
///
/// The name of a key, for a problem found by a check between keys, is the constant with the name of
/// its field: `Settings::commits`.
#[macro_export]
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        $visible:vis struct $name:ident {
            $(
                $(#[doc = $help:literal])+
                $key:literal => $field:ident: $type:ty $(= $default:literal)?
                    $(, $rule:ident $(($($argument:expr),+))?)*;
            )*
            $(..$group:ident: $group_type:ty;)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug)]
        $visible struct $name {
            $($(#[doc = $help])+ pub $field: $type,)*
            $(pub $group: $group_type,)*
        }

        #[allow(non_upper_case_globals, dead_code)]
        impl $name {
            $(pub const $field: &'static str = $key;)*
        }

        impl $crate::config::Settings for $name {
            const KEYS: &'static [$crate::config::Key] = {
                #[allow(unused_imports)]
                use $crate::config::Restart::*;
                &[$(
                    $crate::config::Key::of::<$type>($key, concat!($($help),+).trim_ascii_start())
                        $(.default($default))?
                        $(.$rule($($($argument),+)?))*,
                )*]
            };
            const GROUPS: &'static [&'static [$crate::config::Key]] =
                &[Self::KEYS $(, <$group_type as $crate::config::Settings>::KEYS)*];
            fn read(values: &$crate::config::SubTable) -> Result<Self, $crate::config::ConfigProblem> {
                Ok(Self {
                    $($field: values.get($key)?,)*
                    $($group: $crate::config::Settings::read(values)?,)*
                })
            }
        }
    };
}

/// Declares an enum that a configuration key can have, one word per variant. Derives `Clone`, `Copy`,
/// `Debug`, `PartialEq` and `Eq`.
#[macro_export]
macro_rules! choice {
    (
        $(#[$attribute:meta])*
        $visible:vis enum $name:ident {
            $($(#[$variant_attribute:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visible enum $name {
            $($(#[$variant_attribute])* $variant,)+
        }

        #[allow(dead_code)]
        impl $name {
            /// All words, in the order of the variants.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word in a configuration.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl $crate::config::Setting for $name {
            const KIND: $crate::config::Kind = $crate::config::Kind::Choice(Self::WORDS);
            fn from_value(value: &$crate::config::Value) -> Result<Self, String> {
                match value {
                    $($crate::config::Value::Text(word) if word == $word => Ok(Self::$variant),)+
                    found => Err(format!("has no value {}", found.to_toml())),
                }
            }
        }
    };
}
