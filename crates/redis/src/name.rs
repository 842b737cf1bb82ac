//! The names of keys: `tg:v1:{<tag>}:<rule>:<subject>:<algorithm>`.
//!
//! The tag, in braces, is what a cluster places a key by. The subject is the hash that answers and
//! logs show, so that an operator can find its keys; a raw value is nowhere in a name.

use smallvec::SmallVec;
use tollgate_core::Charge;

use crate::script::Family;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The version of the layout of keys and states. A change of either changes this.
const VERSION: &str = "v1";

/// A key's name. Most fit without an allocation.
pub(crate) type Name = SmallVec<[u8; 96]>;

/// Names keys.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    start: String,
}

impl Naming {
    pub(crate) fn new(prefix: &str) -> Naming {
        Naming {
            start: format!("{prefix}:{VERSION}:{{"),
        }
    }

    /// The name of the state of `charge`.
    pub(crate) fn name(&self, charge: &Charge<'_>, family: Family) -> Name {
        let mut name = Name::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(charge.tag.number()));
        name.extend_from_slice(b"}:");
        name.extend_from_slice(charge.rule.as_bytes());
        name.push(b':');
        name.extend_from_slice(charge.subject().to_hex().as_str().as_bytes());
        name.extend_from_slice(&[b':', family.letter()]);
        name
    }

    /// The name of the overrides of a namespace, a key with the tag `tag`.
    pub(crate) fn overrides(&self, tag: u32, namespace: &str) -> Name {
        let mut name = Name::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(tag));
        name.extend_from_slice(format!("}}:overrides:{namespace}").as_bytes());
        name
    }

    /// The name of the record of a hold that is kept with keys of this tag.
    pub(crate) fn hold(&self, tag: u32, id: u128) -> Name {
        let mut name = Name::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(tag));
        name.extend_from_slice(format!("}}:hold:{id:032x}").as_bytes());
        name
    }

    /// The name of the index of a namespace's holds by when they are due, a key with the tag `tag`.
    pub(crate) fn due(&self, tag: u32, namespace: &str) -> Name {
        let mut name = Name::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(tag));
        name.extend_from_slice(format!("}}:holds:{namespace}").as_bytes());
        name
    }

    /// The name of a key with the tag `tag` that remembers that something was undone.
    pub(crate) fn undone(&self, tag: u32, id: u128) -> Name {
        let mut name = Name::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(tag));
        name.extend_from_slice(format!("}}:undone:{id:032x}").as_bytes());
        name
    }
}

/// What a name says to those who look at a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts<'n> {
    pub(crate) tag: &'n str,
    pub(crate) holds: Holds<'n>,
}

/// What is kept under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds<'n> {
    /// A state of this rule.
    State(&'n str),
    /// The slots of this rule: a sorted set.
    Slots(&'n str),
    /// The record of a hold.
    Hold,
    /// When holds are due: a sorted set.
    Due,
    /// That something was undone.
    Undone,
    /// Overrides: a hash, for as long as nobody clears them.
    Overrides,
}

impl Naming {
    /// The pattern that all keys match, whatever their version.
    pub(crate) fn pattern(prefix: &str) -> String {
        let special = |it: char| matches!(it, '*' | '?' | '[' | ']' | '\\');
        let mut pattern = String::new();
        for it in prefix.chars() {
            if special(it) {
                pattern.push('\\');
            }
            pattern.push(it);
        }
        pattern + ":*"
    }

    /// What a name says; none if it is none of ours.
    pub(crate) fn parts<'n>(&self, name: &'n [u8]) -> Option<Parts<'n>> {
        let name = std::str::from_utf8(name).ok()?;
        let (tag, rest) = name.strip_prefix(&self.start)?.split_once("}:")?;
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if tag.len() != 8 || !is_hex(tag) {
            return None;
        }
        let mut parts = rest.split(':');
        let (rule, id) = (parts.next()?, parts.next()?);
        let holds = match (parts.next(), parts.next()) {
            (None, None) if rule == "overrides" => Holds::Overrides,
            (None, None) if rule == "holds" => Holds::Due,
            (Some("s"), None) => Holds::Slots(rule),
            (Some(letter), None) if letter.len() == 1 => Holds::State(rule),
            (None, None) if rule == "undone" => Holds::Undone,
            (None, None) if rule == "hold" => Holds::Hold,
            _ => return None,
        };
        let is_text = matches!(holds, Holds::Overrides | Holds::Due);
        let is_named = is_text || id.len() == 32 && is_hex(id);
        is_named.then_some(Parts { tag, holds })
    }
}

fn tag_digits(tag: u32) -> [u8; 8] {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let mut digits = [0; 8];
    for (digit, shift) in digits.iter_mut().zip((0..32).step_by(4).rev()) {
        *digit = HEX[(tag >> shift & 15) as usize];
    }
    digits
}

/// The slot that a cluster keeps keys with this tag in.
pub(crate) fn slot_of(tag: u32) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(&tag_digits(tag)) % SLOTS
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Key, Limit, Span, Tag};

    use super::*;

    #[test]
    fn a_name_says_where_whose_and_how() {
        let limit = Limit::fixed_window(1, Span::SECOND).unwrap();
        let charge = Charge {
            overflow: Key::from_bits(0xfff << 64),
            rule: "login",
            tag: Tag::new(0xbeef),
            ..Charge::new(Key::from_bits(0xabc ^ 0xfff << 64), &limit)
        };
        let name = Naming::new("tg").name(&charge, Family::FixedWindow);
        assert_eq!(
            std::str::from_utf8(&name).unwrap(),
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc:f"
        );
    }

    #[test]
    fn names_of_ours_are_told_from_others() {
        let naming = Naming::new("tg");
        let state = b"tg:v1:{0000beef}:login:00000000000000000000000000000abc:f";
        let parts = naming.parts(state).unwrap();
        assert_eq!(
            (parts.tag, parts.holds),
            ("0000beef", Holds::State("login"))
        );
        let undone = naming.undone(0xbeef, 7);
        let parts = naming.parts(&undone).unwrap();
        assert_eq!((parts.tag, parts.holds), ("0000beef", Holds::Undone));
        let overrides = naming.overrides(0xbeef, "prod");
        let parts = naming.parts(&overrides).unwrap();
        assert_eq!((parts.tag, parts.holds), ("0000beef", Holds::Overrides));
        for (name, holds) in [
            (naming.hold(0xbeef, 7), Holds::Hold),
            (naming.due(0xbeef, "prod"), Holds::Due),
        ] {
            let parts = naming.parts(&name).unwrap();
            assert_eq!((parts.tag, parts.holds), ("0000beef", holds));
        }
        let slots = b"tg:v1:{0000beef}:jobs:00000000000000000000000000000abc:s";
        assert_eq!(naming.parts(slots).unwrap().holds, Holds::Slots("jobs"));
        for other in [
            "tg:users",
            "tg:v1:{beef}:login:00000000000000000000000000000abc:f",
            "tg:v1:{0000beef}:login:abc:f",
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc",
            "tg:v2:{0000beef}:login:00000000000000000000000000000abc:f",
            "other:v1:{0000beef}:login:00000000000000000000000000000abc:f",
        ] {
            assert_eq!(naming.parts(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        // The checksum's reference value for "123456789" is 0x31C3.
        assert_eq!(
            crc16::State::<crc16::XMODEM>::calculate(b"123456789"),
            0x31C3
        );
        assert_eq!(
            slot_of(0x1234_5678),
            crc16::State::<crc16::XMODEM>::calculate(b"12345678") % SLOTS
        );
    }
}
