//! Ids and tokens of holds. A hold takes units for a while, and is settled or given back later.

use std::fmt;
use std::str::FromStr;

use crate::{StoreId, Tag};

/// The starts of ids, by the stores that have the hold: the version of the layout.
const IN_DEFAULT: &str = "h1-";
const IN_ONE: &str = "h2-";
const IN_SEVERAL: &str = "h3-";
/// The length of an id after its start and its stores: 8 digits of the tag, a dash, and 32 digits of the bits.
const REST: usize = 8 + 1 + 32;

/// Identifies a hold by 128 random bits that cannot be guessed, a tag, and the stores that have the hold. The
/// record of the hold is stored on the server that has the keys of this tag.
///
/// ```
/// use tollgate_core::{HoldId, HoldStores, StoreId, Tag};
///
/// let id = HoldId::new(0xabc, Tag::new(7));
/// assert_eq!(id.to_string(), "h1-00000007-00000000000000000000000000000abc");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// let elsewhere = id.in_stores(HoldStores::One(StoreId::named("abuse")));
/// assert_eq!(elsewhere.to_string().parse(), Ok(elsewhere));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId {
    id: u128,
    tag: Tag,
    stores: HoldStores,
}

/// The stores that have a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HoldStores {
    /// One store has all charges.
    One(StoreId),
    /// Several stores have a part of the hold each. The part in the store `main` says whether the hold is
    /// open. The id is that of the part in the store `part`.
    Several {
        /// The store with the deciding part.
        main: StoreId,
        /// The store with the part of this id.
        part: StoreId,
    },
}

impl HoldStores {
    /// Returns the stores of a hold with charges in these stores. The main part is in the default store if that
    /// has a charge. It is in the memory of this instance only if no other store has a charge.
    #[must_use]
    pub fn of(charges: impl Iterator<Item = StoreId>) -> HoldStores {
        // The default store is first, and the memory of this instance last.
        let order = |it: StoreId| (it == StoreId::LOCAL, it);
        let mut stores: Option<(StoreId, bool)> = None;
        for store in charges {
            stores = Some(match stores {
                None => (store, false),
                Some((main, _)) if order(store) < order(main) => (store, true),
                Some((main, several)) => (main, several || store != main),
            });
        }
        match stores {
            None => HoldStores::One(StoreId::DEFAULT),
            Some((main, false)) => HoldStores::One(main),
            Some((main, true)) => HoldStores::Several { main, part: main },
        }
    }
}

impl HoldId {
    /// Returns the id with these bits and this tag, of a hold in the default store.
    #[must_use]
    pub const fn new(id: u128, tag: Tag) -> HoldId {
        HoldId {
            id,
            tag,
            stores: HoldStores::One(StoreId::DEFAULT),
        }
    }

    /// Returns the same id for a hold in these stores.
    #[must_use]
    pub const fn in_stores(self, stores: HoldStores) -> HoldId {
        HoldId { stores, ..self }
    }

    /// Returns the random bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.id
    }

    /// Returns the tag that decides which server stores the record.
    #[must_use]
    pub const fn tag(self) -> Tag {
        self.tag
    }

    /// Returns the stores that have the hold.
    #[must_use]
    pub const fn stores(self) -> HoldStores {
        self.stores
    }

    /// Returns the store of the record that says whether the hold is open.
    #[must_use]
    pub const fn main(self) -> StoreId {
        match self.stores {
            HoldStores::One(main) | HoldStores::Several { main, .. } => main,
        }
    }

    /// Returns the id of the part of this hold in `store`.
    #[must_use]
    pub const fn part_in(self, store: StoreId) -> HoldId {
        match self.stores {
            HoldStores::One(_) => self,
            HoldStores::Several { main, .. } => {
                self.in_stores(HoldStores::Several { main, part: store })
            }
        }
    }
}

impl fmt::Display for HoldId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stores {
            HoldStores::One(StoreId::DEFAULT) => f.write_str(IN_DEFAULT)?,
            HoldStores::One(store) => write!(f, "{IN_ONE}{:08x}-", store.number())?,
            HoldStores::Several { main, part } => {
                let (main, part) = (main.number(), part.number());
                write!(f, "{IN_SEVERAL}{main:08x}-{part:08x}-")?;
            }
        }
        write!(f, "{:08x}-{:032x}", self.tag.number(), self.id)
    }
}

impl FromStr for HoldId {
    type Err = HoldIdError;

    fn from_str(text: &str) -> Result<HoldId, HoldIdError> {
        let starts = [(IN_DEFAULT, 0), (IN_ONE, 1), (IN_SEVERAL, 2)];
        let mut starts = starts.into_iter();
        let found = starts.find_map(|(start, stores)| Some((text.strip_prefix(start)?, stores)));
        let (mut rest, stores) = found.ok_or(HoldIdError::Start)?;
        let length = REST + 9 * stores;
        if rest.len() != length {
            let length = IN_DEFAULT.len() + length;
            let is = text.len();
            return Err(HoldIdError::Length { length, is });
        }
        let mut numbers = [0; 3];
        for number in &mut numbers[..=stores] {
            let (word, after) = rest.split_once('-').ok_or(HoldIdError::Digits)?;
            if word.len() != 8 || !is_hex(word) {
                return Err(HoldIdError::Digits);
            }
            *number = u32::from_str_radix(word, 16).map_err(|_| HoldIdError::Digits)?;
            rest = after;
        }
        if !is_hex(rest) {
            return Err(HoldIdError::Digits);
        }
        let id = u128::from_str_radix(rest, 16).map_err(|_| HoldIdError::Digits)?;
        let store = |place: usize| StoreId::new(numbers[place]);
        let places = match stores {
            0 => HoldStores::One(StoreId::DEFAULT),
            1 => HoldStores::One(store(0)),
            _ => HoldStores::Several {
                main: store(0),
                part: store(1),
            },
        };
        Ok(HoldId::new(id, Tag::new(numbers[stores])).in_stores(places))
    }
}

fn is_hex(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Why a text is not the id of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldIdError {
    /// The text does not begin like an id.
    #[error(
        "an id begins with `{IN_DEFAULT}`, `{IN_ONE}` or `{IN_SEVERAL}`: send the id as you received it"
    )]
    Start,
    /// The text is too short or too long.
    #[error(
        "such an id has {length} characters, and this one has {is}: send the id as you received it"
    )]
    Length {
        /// The length that an id with this start has.
        length: usize,
        /// The length of the text.
        is: usize,
    },
    /// The text has characters that an id does not have.
    #[error(
        "after its start, an id has groups of 8 digits and one of 32 digits, joined by `-`, each digit 0-9 or a-f: \
         send the id as you received it"
    )]
    Digits,
}

/// The secret that proves who owns a lease. Not shown in logs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Token(u128);

impl Token {
    /// The token of a hold without a secret.
    pub const NONE: Token = Token(0);

    /// Returns the token with these bits.
    #[must_use]
    pub const fn new(bits: u128) -> Token {
        Token(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_as_they_were() {
        for (id, tag) in [(0, 0), (u128::MAX, u32::MAX), (1 << 77, 0xbeef)] {
            let id = HoldId::new(id, Tag::new(tag));
            assert_eq!(id.to_string().parse(), Ok(id));
            let (main, part) = (StoreId::LOCAL, StoreId::named("abuse"));
            for stores in [HoldStores::One(part), HoldStores::Several { main, part }] {
                let id = id.in_stores(stores);
                assert_eq!(id.to_string().parse(), Ok(id));
            }
        }
    }

    #[test]
    fn the_default_store_decides_and_the_local_one_only_alone() {
        let (default, local) = (StoreId::DEFAULT, StoreId::LOCAL);
        let named = StoreId::named("abuse");
        let of = |stores: &[StoreId]| HoldStores::of(stores.iter().copied());
        let several = |main| HoldStores::Several { main, part: main };
        assert_eq!(of(&[]), HoldStores::One(default));
        assert_eq!(of(&[local, local]), HoldStores::One(local));
        assert_eq!(of(&[named]), HoldStores::One(named));
        assert_eq!(of(&[local, named, default]), several(default));
        assert_eq!(of(&[named, local]), several(named));
        assert_eq!(of(&[local, named]), several(named));
    }

    #[test]
    fn other_texts_are_rejected() {
        let whole = HoldId::new(7, Tag::new(7)).to_string();
        let digits = |from: &str, to: &str| whole.replacen(from, to, 1).parse::<HoldId>();
        assert_eq!("".parse::<HoldId>(), Err(HoldIdError::Start));
        assert_eq!(digits("h1", "h4"), Err(HoldIdError::Start));
        let length = |is| Err(HoldIdError::Length { length: 44, is });
        assert_eq!(whole[..43].parse::<HoldId>(), length(43));
        assert_eq!(digits("07-", "7-0"), Err(HoldIdError::Digits));
        assert_eq!(digits("07-", "+7-"), Err(HoldIdError::Digits));
        assert_eq!(digits("07-", "0A-"), Err(HoldIdError::Digits));
        let long = "h1-".to_owned() + &"é".repeat(1 << 16);
        assert_eq!(long.parse::<HoldId>(), length(long.len()));
    }

    #[test]
    fn tokens_are_not_shown() {
        assert_eq!(format!("{:?}", Token::new(12345)), "Token(***)");
    }
}
