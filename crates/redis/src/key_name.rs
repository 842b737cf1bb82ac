//! The names of keys: `tg:v1:{<tag>}:<rule>:<subject>:<algorithm>`.
//!
//! The tag in braces determines the cluster slot. The subject is the hash that answers and logs show, so that
//! an operator can find its keys; a name never has the raw value.

use std::sync::OnceLock;

use smallvec::SmallVec;
use tollgate_core::{Charge, Tag};

use crate::script::Family;

/// How many slots a Redis Cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The version of the layout of keys and states. Any change of the layout needs another version.
pub(crate) const VERSION: &str = "v1";

/// The name of a key. Most fit without an allocation.
pub(crate) type KeyName = SmallVec<[u8; 96]>;

/// Makes the names of keys, and parses them.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    start: String,
    /// The start of the name of a deployment, before its namespace. It has no version, because instances with
    /// another layout must find it too.
    deployment: String,
}

/// Returns the name of the key that keeps the state of `charge`, under a `key_prefix`. `None` if the limit keeps
/// no state.
#[must_use]
pub fn state_key(prefix: &str, charge: &Charge<'_>) -> Option<String> {
    let family = Family::of(charge.limit)?;
    let name = KeyNames::new(prefix).name(charge, family);
    Some(String::from_utf8_lossy(&name).into_owned())
}

impl KeyNames {
    pub(crate) fn new(prefix: &str) -> KeyNames {
        KeyNames {
            start: format!("{prefix}:{VERSION}:{{"),
            deployment: format!("{prefix}:{{00000000}}:deployment:"),
        }
    }

    /// Returns the name of the state of `charge`.
    pub(crate) fn name(&self, charge: &Charge<'_>, family: Family) -> KeyName {
        let mut name = self.with_tag(charge.tag, charge.rule);
        name.push(b':');
        name.extend_from_slice(charge.subject().to_hex().as_str().as_bytes());
        name.extend_from_slice(&[b':', family.letter()]);
        name
    }

    /// Returns the name of the mark of a client, given the name of the fair bucket.
    pub(crate) fn mark(bucket: &[u8], id: u64) -> KeyName {
        let mut name = KeyName::from_slice(bucket);
        name.push(b':');
        name.extend_from_slice(&digits::<16>(id));
        name
    }

    /// Returns the name of the state that new subjects share, given the name of the state of a subject. There is one
    /// for each rule, algorithm and cluster slot. Its subject is zero, and its tag is the first one of the cluster
    /// slot.
    pub(crate) fn shared(&self, name: &[u8], slot: u16) -> KeyName {
        let mut shared = KeyName::from_slice(name);
        let (tag, end) = (self.start.len(), name.len());
        if let Some(digits) = shared.get_mut(tag..tag + 8) {
            digits.copy_from_slice(&tag_digits(first_tag(slot)));
        }
        if let Some(subject) = shared.get_mut(end.saturating_sub(34)..end.saturating_sub(2)) {
            subject.fill(b'0');
        }
        shared
    }

    /// Returns the rule and the algorithm in the name of a state: `<rule>:<algorithm>`.
    pub(crate) fn rule_of(&self, name: &[u8]) -> KeyName {
        let (from, end) = (self.start.len() + 10, name.len());
        let rule = name.get(from..end.saturating_sub(35)).unwrap_or_default();
        let mut rule = KeyName::from_slice(rule);
        rule.extend_from_slice(&name[end.saturating_sub(2)..]);
        rule
    }

    /// Returns the name of the index of rules with a shared state.
    pub(crate) fn shared_index(&self) -> KeyName {
        self.with_tag(Tag::default(), "shared:rules")
    }

    /// Returns the name of the overrides of a namespace.
    pub(crate) fn overrides(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("overrides:{namespace}"))
    }

    /// Returns the name of the config versions of a namespace.
    pub(crate) fn configs(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("configs:{namespace}"))
    }

    /// Returns the name of the list of instances of a namespace.
    pub(crate) fn instances(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("instances:{namespace}"))
    }

    /// Returns the name of the audit trail of a namespace.
    pub(crate) fn audit(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("audit:{namespace}"))
    }

    /// Returns the name of the deployment of a namespace. Its tag is the default one.
    pub(crate) fn deployment(&self, namespace: &str) -> KeyName {
        let mut name = KeyName::from_slice(self.deployment.as_bytes());
        name.extend_from_slice(namespace.as_bytes());
        name
    }

    /// Returns the name of the record of a hold.
    pub(crate) fn hold(&self, tag: Tag, id: u128) -> KeyName {
        self.with_tag(tag, &format!("hold:{id:032x}"))
    }

    /// Returns the name of a namespace's index of holds, in the order in which they expire.
    pub(crate) fn due(&self, namespace: &str) -> KeyName {
        self.with_tag(Tag::default(), &format!("holds:{namespace}"))
    }

    /// Returns the name of the set of a subject's open holds.
    pub(crate) fn open(&self, tag: Tag, subject: u128) -> KeyName {
        self.with_tag(tag, &format!("open:{subject:032x}"))
    }

    /// Returns the name of a key that remembers a refund.
    pub(crate) fn undone(&self, tag: Tag, id: u128) -> KeyName {
        self.with_tag(tag, &format!("undone:{id:032x}"))
    }

    fn with_tag(&self, tag: Tag, rest: &str) -> KeyName {
        let mut name = KeyName::from_slice(self.start.as_bytes());
        name.extend_from_slice(&tag_digits(tag));
        name.extend_from_slice(b"}:");
        name.extend_from_slice(rest.as_bytes());
        name
    }

    /// Returns a pattern that matches all keys of any layout version.
    pub(crate) fn pattern(prefix: &str) -> String {
        let mut pattern = String::new();
        for it in prefix.chars() {
            if matches!(it, '*' | '?' | '[' | ']' | '\\') {
                pattern.push('\\');
            }
            pattern.push(it);
        }
        pattern + ":*"
    }

    /// Returns the tag in a name, and what the key stores; `None` if Tollgate did not make the name.
    pub(crate) fn parse<'n>(&self, name: &'n [u8]) -> Option<(&'n str, Content<'n>)> {
        let name = std::str::from_utf8(name).ok()?;
        if name.starts_with(&self.deployment) {
            return Some(("00000000", Content::Deployment));
        }
        let (tag, rest) = name.strip_prefix(&self.start)?.split_once("}:")?;
        let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
        if tag.len() != 8 || !is_hex(tag) {
            return None;
        }
        let mut parts = rest.split(':');
        let (rule, id) = (parts.next()?, parts.next()?);
        let (third, fourth) = (parts.next(), parts.next());
        if parts.next().is_some() {
            return None;
        }
        let content = match (third, fourth) {
            (None, None) if rule == "overrides" => Content::Overrides,
            (None, None) if rule == "configs" => Content::Configs,
            (None, None) if rule == "instances" => Content::Instances,
            (None, None) if rule == "audit" => Content::Audit,
            (None, None) if rule == "holds" => Content::Due,
            (None, None) if rule == "shared" => Content::SharedIndex,
            (Some("s"), None) => Content::Slots(rule),
            (Some(letter), None) if letter.len() == 1 => Content::State(rule),
            (Some("p"), Some(client)) if client.len() == 16 && is_hex(client) => {
                Content::Mark(rule)
            }
            (None, None) if rule == "undone" => Content::Undone,
            (None, None) if rule == "hold" => Content::Hold,
            (None, None) if rule == "open" => Content::Open,
            _ => return None,
        };
        let is_text = matches!(
            content,
            Content::Overrides
                | Content::Configs
                | Content::Instances
                | Content::Audit
                | Content::Due
                | Content::SharedIndex
        );
        let is_named = is_text || id.len() == 32 && is_hex(id);
        is_named.then_some((tag, content))
    }
}

/// The content of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content<'n> {
    /// A state of the rule.
    State(&'n str),
    /// The slots of a concurrency limit of the rule: a sorted set.
    Slots(&'n str),
    /// What one client has used of a fair bucket of the rule.
    Mark(&'n str),
    /// The record of a hold.
    Hold,
    /// The index of due holds: a sorted set of ids, by the time at which an instance has to end each hold.
    Due,
    /// The open holds of a subject: a sorted set of ids, by expiry.
    Open,
    /// A marker that a refund was made.
    Undone,
    /// Overrides: a hash that does not expire.
    Overrides,
    /// Texts of configs: a hash that does not expire.
    Configs,
    /// What each instance says of itself: a hash that does not expire.
    Instances,
    /// The audit trail: a list that does not expire.
    Audit,
    /// How subjects are hashed: a hash that does not expire.
    Deployment,
    /// The index of rules with a shared state: a sorted set.
    SharedIndex,
}

impl<'n> Content<'n> {
    /// Returns the rule, or a name in parentheses for a key that belongs to no rule.
    pub(crate) fn rule(self) -> &'n str {
        match self {
            Content::State(rule) | Content::Slots(rule) | Content::Mark(rule) => rule,
            Content::Hold => "(holds)",
            Content::Due => "(due holds)",
            Content::Open => "(open holds)",
            Content::Undone => "(refunds)",
            Content::Overrides => "(overrides)",
            Content::Configs => "(config versions)",
            Content::Instances => "(instances)",
            Content::Audit => "(audit trail)",
            Content::Deployment => "(deployment)",
            Content::SharedIndex => "(shared states)",
        }
    }
}

fn tag_digits(tag: Tag) -> [u8; 8] {
    digits(tag.number().into())
}

/// Returns the lowest `N` hexadecimal digits of a number.
fn digits<const N: usize>(number: u64) -> [u8; N] {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    let mut digits = [0; N];
    for (place, digit) in digits.iter_mut().rev().enumerate() {
        *digit = HEX[(number >> (4 * place) & 15) as usize];
    }
    digits
}

/// Returns the lowest tag whose keys are in this cluster slot.
fn first_tag(slot: u16) -> Tag {
    static TAGS: OnceLock<Vec<u32>> = OnceLock::new();
    let tags = TAGS.get_or_init(|| {
        let mut tags = vec![None; usize::from(SLOTS)];
        let mut missing = tags.len();
        for number in 0..u32::MAX {
            let tag = &mut tags[usize::from(slot_of(Tag::new(number)))];
            if tag.is_none() {
                *tag = Some(number);
                missing -= 1;
            }
            if missing == 0 {
                break;
            }
        }
        tags.into_iter().map(Option::unwrap_or_default).collect()
    });
    Tag::new(tags.get(usize::from(slot)).copied().unwrap_or_default())
}

/// Returns the cluster slot of keys with this tag.
pub(crate) fn slot_of(tag: Tag) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(&tag_digits(tag)) % SLOTS
}

#[cfg(test)]
mod tests {
    use tollgate_core::{Key, Limit, Span};

    use super::*;

    #[test]
    fn a_name_has_tag_rule_subject_and_algorithm() {
        let limit = Limit::fixed_window(1, Span::SECOND).unwrap();
        let charge = Charge {
            overflow: Key::from_bits(0xfff << 64),
            rule: "login",
            tag: Tag::new(0xbeef),
            ..Charge::new(Key::from_bits(0xabc ^ 0xfff << 64), &limit)
        };
        let name = KeyNames::new("tg").name(&charge, Family::FixedWindow);
        assert_eq!(
            std::str::from_utf8(&name).unwrap(),
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc:f"
        );
    }

    #[test]
    fn only_names_of_tollgate_are_parsed() {
        let naming = KeyNames::new("tg");
        let state = b"tg:v1:{0000beef}:login:00000000000000000000000000000abc:f";
        let slots = b"tg:v1:{0000beef}:jobs:00000000000000000000000000000abc:s";
        let bucket = b"tg:v1:{0000beef}:jobs:00000000000000000000000000000abc:p";
        for (name, tag, content) in [
            (
                KeyName::from_slice(state),
                "0000beef",
                Content::State("login"),
            ),
            (
                KeyName::from_slice(slots),
                "0000beef",
                Content::Slots("jobs"),
            ),
            (
                naming.undone(Tag::new(0xbeef), 7),
                "0000beef",
                Content::Undone,
            ),
            (naming.hold(Tag::new(0xbeef), 7), "0000beef", Content::Hold),
            (
                KeyNames::mark(&bucket[..], u64::MAX),
                "0000beef",
                Content::Mark("jobs"),
            ),
            (naming.open(Tag::new(0xbeef), 7), "0000beef", Content::Open),
            (naming.overrides("prod"), "00000000", Content::Overrides),
            (naming.configs("prod"), "00000000", Content::Configs),
            (naming.instances("prod"), "00000000", Content::Instances),
            (naming.audit("prod"), "00000000", Content::Audit),
            (naming.due("prod"), "00000000", Content::Due),
            (naming.deployment("prod"), "00000000", Content::Deployment),
            (naming.shared_index(), "00000000", Content::SharedIndex),
        ] {
            assert_eq!(naming.parse(&name), Some((tag, content)));
        }
        for other in [
            "tg:users",
            "tg:v1:{beef}:login:00000000000000000000000000000abc:f",
            "tg:v1:{0000beef}:login:abc:f",
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc:f:00000000000000ff",
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc:p:ff",
            "tg:v1:{0000beef}:login:00000000000000000000000000000abc",
            "tg:v2:{0000beef}:login:00000000000000000000000000000abc:f",
            "other:v1:{0000beef}:login:00000000000000000000000000000abc:f",
        ] {
            assert_eq!(naming.parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_shared_state_of_a_rule_is_in_the_same_cluster_slot() {
        let naming = KeyNames::new("tg");
        let own = b"tg:v1:{0000beef}:login:00000000000000000000000000000abc:f";
        let slot = slot_of(Tag::new(0xbeef));
        let shared = naming.shared(own, slot);
        let (tag, content) = naming.parse(&shared).unwrap();
        assert_eq!(content, Content::State("login"));
        let tag = u32::from_str_radix(tag, 16).unwrap();
        assert_eq!(slot_of(Tag::new(tag)), slot);
        // The same for each subject of the rule in this cluster slot.
        let other = b"tg:v1:{00000000}:login:000000000000000000000000000000de:f";
        assert_eq!(naming.shared(other, slot), shared);
        assert_ne!(naming.shared(other, slot ^ 1), shared);
        assert_eq!(&*naming.rule_of(own), b"login:f");
        assert_eq!(naming.rule_of(own), naming.rule_of(&shared));
    }

    #[test]
    fn cluster_slots_follow_the_specification() {
        let checksum = crc16::State::<crc16::XMODEM>::calculate;
        // The checksum's reference value for "123456789" is 0x31C3.
        assert_eq!(checksum(b"123456789"), 0x31C3);
        let slot = slot_of(Tag::new(0x1234_5678));
        assert_eq!(slot, checksum(b"12345678") % SLOTS);
    }
}
