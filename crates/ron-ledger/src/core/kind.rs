//! The kinds of entries and their numbers in the log.

/// Declares the kinds with their numbers, so that reading a number knows every kind.
macro_rules! kinds {
    ($($kind:ident = $number:literal,)+) => {
        /// Kind of an entry. Its number stands in the log and is never given to another kind.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Kind {
            $($kind = $number,)+
        }

        impl Kind {
            pub const ALL: &[Self] = &[$(Self::$kind,)+];

            pub(super) const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)+
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    Issue = 1,
    Transfer = 2,
    Burn = 3,
    Hold = 4,
    Capture = 5,
    Release = 6,
    Expire = 7,
    Freeze = 8,
    Unfreeze = 9,
    EpochOpen = 10,
    Payout = 11,
    EpochClose = 12,
    Abandon = 13,
    Reverse = 14,
    Account = 15,
    Asset = 16,
    EpochVoid = 17,
}

impl Kind {
    /// True for the kinds that settle reward epochs. They have no key: the state identifies them.
    pub const fn is_settlement(self) -> bool {
        matches!(
            self,
            Self::EpochOpen | Self::Payout | Self::EpochClose | Self::EpochVoid
        )
    }

    /// Whether the leaf of a done entry records what it moved, because the request does not say it.
    pub(super) const fn has_effect(self) -> bool {
        match self {
            Self::Capture | Self::Release | Self::Expire | Self::Reverse => true,
            Self::Issue
            | Self::Transfer
            | Self::Burn
            | Self::Hold
            | Self::Freeze
            | Self::Unfreeze
            | Self::Account
            | Self::Asset
            | Self::EpochOpen
            | Self::Payout
            | Self::EpochClose
            | Self::EpochVoid
            | Self::Abandon => false,
        }
    }
}
