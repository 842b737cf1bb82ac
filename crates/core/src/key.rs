//! Keys: names of the state of one subject under one rule.
//!
//! A subject consists of the values of a rule's `per` attributes. The values may be API keys, e-mail
//! addresses or IP addresses, so they leave this module only as a keyed 128-bit hash.
//!
//! Each value is prefixed with its length. The namespace, the key version and the attribute names are
//! part of the hash key. So different subjects, namespaces or rules have different keys, except with a
//! probability of 2^-128.
//!
//! A keyring for states that outlive the process uses keyed BLAKE3. A keyring for one process uses SipHash,
//! which takes a third of the time. `docs/decisions/0022-cheaper-checks.md` has the reasons.

use std::fmt;

use crate::Tag;
use crate::siphash::SipKey;

/// The version of the layout of keys. After a change of the version, stores do not find old states.
const VERSION: &str = "tollgate key v1";

/// The same for keyrings of one process.
const ONE_PROCESS: &str = "tollgate key of one process";

/// The purposes of other values that are derived from a key. Values with different purposes are
/// independent of each other.
const FINGERPRINT: &str = "tollgate keyring fingerprint v1";
const SEAL: &str = "tollgate keyring seal v1";

/// Hashes subjects and rules of one namespace with one secret.
#[derive(Clone)]
pub struct Keyring {
    key: [u8; 32],
    /// Whether no hash outlives the process.
    is_of_process: bool,
}

impl Keyring {
    /// Returns a keyring for `namespace`. Instances that share a store must share the secret.
    #[must_use]
    pub fn new(secret: &[u8], namespace: &str) -> Keyring {
        Keyring {
            key: derived(VERSION, secret, namespace),
            is_of_process: false,
        }
    }

    /// Returns a keyring whose hashes do not outlive the process, because `secret` is random. Such a keyring
    /// hashes subjects faster. Later versions may hash in another way.
    #[must_use]
    pub fn of_process(secret: &[u8], namespace: &str) -> Keyring {
        Keyring {
            key: derived(ONE_PROCESS, secret, namespace),
            is_of_process: true,
        }
    }

    /// Returns the kind of subject that consists of these attributes. The names become part of the hash
    /// key, so that for each request only the values are hashed.
    #[must_use]
    pub fn kind<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> SubjectKind {
        let mut gathered = Gather::new(&self.key);
        gathered.part(b"kind");
        for name in names {
            gathered.part(name.as_bytes());
        }
        let key = *gathered.finish().as_bytes();
        SubjectKind(match self.is_of_process {
            true => KindKey::Sip(SipKey::new(&key)),
            false => KindKey::Blake3(key),
        })
    }

    /// Returns the part of a key that belongs to the rule `id`. Callers compute it once per rule.
    #[must_use]
    pub fn rule(&self, id: &str) -> RuleSalt {
        let mut gathered = Gather::new(&self.key);
        gathered.part(b"rule");
        gathered.part(id.as_bytes());
        RuleSalt(first_half(&gathered.finish()))
    }

    /// Returns a name of the keyring: 32 hexadecimal digits. Two keyrings have the same name only if they
    /// hash in the same way. The name reveals nothing about the secret, and may be stored and shown.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        let hash = blake3::Hasher::new_derive_key(FINGERPRINT)
            .update(&self.key)
            .finalize();
        Subject(first_half(&hash)).to_string()
    }

    /// Encrypts `other`, so that only this keyring can [unseal](Self::unseal) it: 64 hexadecimal digits.
    #[must_use]
    pub fn seal(&self, other: &Keyring) -> String {
        let bytes = self.with_pad(&other.key, &other.fingerprint());
        blake3::Hash::from_bytes(bytes).to_hex().to_string()
    }

    /// Decrypts a keyring that this keyring has [sealed](Self::seal), and that has this fingerprint. `None`
    /// if another keyring has sealed it.
    #[must_use]
    pub fn unseal(&self, sealed: &str, fingerprint: &str) -> Option<Keyring> {
        let sealed = blake3::Hash::from_hex(sealed).ok()?;
        let key = self.with_pad(sealed.as_bytes(), fingerprint);
        let keyring = Keyring {
            key,
            is_of_process: false,
        };
        (keyring.fingerprint() == fingerprint).then_some(keyring)
    }

    /// Encrypts or decrypts a key by XOR with a pad. The pad depends on both keys, so each pad is used
    /// for one key only. The fingerprint shows whether a decrypted key is the right one.
    fn with_pad(&self, key: &[u8; 32], fingerprint: &str) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key(SEAL);
        hasher.update(&self.key).update(fingerprint.as_bytes());
        let mut bytes = *hasher.finalize().as_bytes();
        for (byte, of_key) in bytes.iter_mut().zip(key) {
            *byte ^= of_key;
        }
        bytes
    }
}

/// Returns the key of a keyring.
fn derived(version: &str, secret: &[u8], namespace: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(version);
    hasher.update(&(namespace.len() as u64).to_le_bytes());
    hasher.update(namespace.as_bytes());
    hasher.update(secret);
    *hasher.finalize().as_bytes()
}

/// Hashes subjects that consist of the same attributes.
#[derive(Clone)]
pub struct SubjectKind(KindKey);

#[derive(Clone)]
enum KindKey {
    Blake3([u8; 32]),
    Sip(SipKey),
}

impl SubjectKind {
    /// Returns the subject with these values, given in the order of the names.
    #[must_use]
    #[inline]
    pub fn subject<'a>(&self, values: impl IntoIterator<Item = &'a str>) -> Subject {
        match &self.0 {
            KindKey::Sip(key) => {
                let mut hash = key.start();
                for value in values {
                    hash = hash.part(value.as_bytes());
                }
                Subject(hash.finish())
            }
            KindKey::Blake3(key) => by_blake3(key, values),
        }
    }

    /// Returns the subject with one value: these bytes, which need not be text.
    #[must_use]
    #[inline]
    pub fn subject_of(&self, value: &[u8]) -> Subject {
        match &self.0 {
            KindKey::Sip(key) => Subject(key.start().part(value).finish()),
            KindKey::Blake3(key) => {
                let mut gathered = Gather::new(key);
                gathered.part(value);
                Subject(first_half(&gathered.finish()))
            }
        }
    }
}

impl fmt::Debug for SubjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubjectKind(***)")
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(***)")
    }
}

/// Hashes values with BLAKE3. It is a separate function, so that the faster hash does not pay for its buffer.
#[inline(never)]
fn by_blake3<'a>(key: &[u8; 32], values: impl IntoIterator<Item = &'a str>) -> Subject {
    let mut gathered = Gather::new(key);
    for value in values {
        gathered.part(value.as_bytes());
    }
    Subject(first_half(&gathered.finish()))
}

/// Collects the values to hash. Short subjects are collected on the stack and hashed in one call. Longer
/// subjects go through an incremental hasher.
struct Gather<'k> {
    key: &'k [u8; 32],
    buffer: [u8; 128],
    used: usize,
    spilled: Option<Box<blake3::Hasher>>,
}

impl<'k> Gather<'k> {
    #[inline]
    fn new(key: &'k [u8; 32]) -> Gather<'k> {
        Gather {
            key,
            buffer: [0; 128],
            used: 0,
            spilled: None,
        }
    }

    /// Adds one value: its length in a byte, and its bytes. A longer value has a length byte of 255, and then
    /// its length in eight bytes. So two different lists of values never give the same bytes.
    #[inline]
    fn part(&mut self, bytes: &[u8]) {
        let end = self.used + 1 + bytes.len();
        if let Ok(length @ ..=254) = u8::try_from(bytes.len())
            && self.spilled.is_none()
            && let Some([first, rest @ ..]) = self.buffer.get_mut(self.used..end)
        {
            *first = length;
            rest.copy_from_slice(bytes);
            self.used = end;
        } else {
            self.spill(bytes);
        }
    }

    /// Adds a value that does not fit into the buffer.
    #[cold]
    fn spill(&mut self, bytes: &[u8]) {
        let (key, buffered) = (self.key, &self.buffer[..self.used]);
        let hasher = self.spilled.get_or_insert_with(|| {
            let mut hasher = Box::new(blake3::Hasher::new_keyed(key));
            hasher.update(buffered);
            hasher
        });
        match u8::try_from(bytes.len()) {
            Ok(length @ ..=254) => hasher.update(&[length]),
            _ => hasher
                .update(&[u8::MAX])
                .update(&(bytes.len() as u64).to_le_bytes()),
        };
        hasher.update(bytes);
    }

    #[inline]
    fn finish(&self) -> blake3::Hash {
        match &self.spilled {
            Some(hasher) => hasher.finalize(),
            None => blake3::keyed_hash(self.key, &self.buffer[..self.used]),
        }
    }
}

#[inline]
fn first_half(hash: &blake3::Hash) -> u128 {
    let mut half = [0; 16];
    half.copy_from_slice(&hash.as_bytes()[..16]);
    u128::from_le_bytes(half)
}

/// A hashed subject. Safe to log.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Subject(u128);

impl Subject {
    /// Returns the subject with this hash, as [`bits`](Self::bits) has returned it.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Subject {
        Subject(bits)
    }

    /// Returns the hash.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }

    /// Returns a number in `0..range` for gradual rollouts. The number depends on the subject alone, so it
    /// stays the same. It is independent of the bits that place the key in a store.
    #[must_use]
    pub fn draw(self, range: u64) -> u64 {
        let mixed =
            (self.0 ^ (self.0 >> 64)).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
        let high = mixed >> 64;
        // `high` is below 2^64, so the product fits, and the result is below `range`.
        #[allow(clippy::cast_possible_truncation)]
        let drawn = ((high * u128::from(range)) >> 64) as u64;
        drawn
    }

    /// Returns the tag of the subject's keys. The tag is independent of [`draw`](Self::draw).
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // 32 bits are enough.
    pub fn tag(self) -> Tag {
        Tag::new((self.0 >> 32) as u32)
    }

    /// Returns the subject as 32 hexadecimal digits. This is faster than a formatter.
    #[must_use]
    pub fn to_hex(self) -> SubjectHex {
        let mut digits = [0; 32];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(self.0.to_be_bytes()) {
            pair[0] = HEX[usize::from(byte >> 4)];
            pair[1] = HEX[usize::from(byte & 15)];
        }
        SubjectHex(digits)
    }
}

const HEX: [u8; 16] = *b"0123456789abcdef";

/// A subject in hexadecimal digits.
#[derive(Clone, Copy, Debug)]
pub struct SubjectHex([u8; 32]);

impl SubjectHex {
    /// Returns the digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Digits are ASCII, so this never fails.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_hex().as_str())
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({self})")
    }
}

/// A rule's part of its keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RuleSalt(u128);

impl RuleSalt {
    /// Returns the tag of keys that depend on the rule alone, not on the subject.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // 32 bits are enough.
    pub fn tag(self) -> Tag {
        Tag::new((self.0 >> 32) as u32)
    }
}

impl From<Key> for RuleSalt {
    /// Returns the salt of the rule, which has the same bits as its overflow key.
    fn from(overflow: Key) -> RuleSalt {
        RuleSalt(overflow.0)
    }
}

/// The name of the state of one subject under one rule: 128 uniformly distributed bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u128);

impl Key {
    /// Returns the key of `subject` under the rule of `salt`.
    #[must_use]
    pub fn new(salt: RuleSalt, subject: Subject) -> Key {
        Key(salt.0 ^ subject.0)
    }

    /// Returns the key of the state that new subjects of the rule share while the store is full.
    #[must_use]
    pub fn overflow(salt: RuleSalt) -> Key {
        Key(salt.0)
    }

    /// Returns the subject, given the salt of the key's rule.
    #[must_use]
    pub fn subject(self, salt: RuleSalt) -> Subject {
        Subject(self.0 ^ salt.0)
    }

    /// Returns the key with these bits. The bits have to be uniformly distributed.
    #[must_use]
    pub const fn from_bits(bits: u128) -> Key {
        Key(bits)
    }

    /// Returns the bits.
    #[must_use]
    pub const fn bits(self) -> u128 {
        self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:032x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyring() -> Keyring {
        Keyring::new(b"a secret of sixteen", "prod")
    }

    fn subject<const N: usize>(keyring: &Keyring, parts: [(&str, &str); N]) -> Subject {
        let kind = keyring.kind(parts.map(|(name, _)| name));
        kind.subject(parts.map(|(_, value)| value))
    }

    #[test]
    fn a_subject_hashes_the_same_on_every_instance() {
        let parts = [("tenant", "acme"), ("api_key", "k1")];
        // If this hash changes, stores do not find any state of older versions. Then VERSION must change.
        assert_eq!(
            subject(&keyring(), parts).to_string(),
            "90a0d2a04ddad9cea6d9026ab53fb296"
        );
    }

    #[test]
    fn a_keyring_of_one_process_hashes_in_its_own_way() {
        let own = Keyring::of_process(b"a secret of sixteen", "prod");
        assert_ne!(own.fingerprint(), keyring().fingerprint());
        let parts = [("tenant", "acme"), ("api_key", "k1")];
        assert_ne!(subject(&own, parts), subject(&keyring(), parts));
        let mut seen = std::collections::HashSet::new();
        for other in [
            subject(&own, parts),
            subject(&own, [("tenant", "acme"), ("api_key", "k2")]),
            subject(&own, [("tenant", "acmek"), ("api_key", "1")]),
            subject(&own, [("tenant", "acme"), ("user", "k1")]),
            subject(&own, [("tenant", "acme")]),
            subject(&own, []),
            subject(&Keyring::of_process(b"another secret 16", "prod"), parts),
            subject(&Keyring::of_process(b"a secret of sixteen", "test"), parts),
        ] {
            assert!(seen.insert(other));
        }
        let kind = own.kind(["user"]);
        let long = "x".repeat(500);
        for text in ["", "ann", &long] {
            assert_eq!(kind.subject_of(text.as_bytes()), kind.subject([text]));
        }
    }

    #[test]
    fn secret_namespace_name_value_and_split_all_matter() {
        let base = subject(&keyring(), [("user", "ann")]);
        let others = [
            subject(
                &Keyring::new(b"another secret 16", "prod"),
                [("user", "ann")],
            ),
            subject(
                &Keyring::new(b"a secret of sixteen", "test"),
                [("user", "ann")],
            ),
            subject(&keyring(), [("ip", "ann")]),
            subject(&keyring(), [("user", "bob")]),
            subject(&keyring(), [("usera", "nn")]),
            subject(&keyring(), [("user", "an"), ("n", "")]),
            subject(&keyring(), []),
        ];
        for other in others {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn bytes_and_the_same_text_are_one_subject() {
        let kind = keyring().kind(["user"]);
        let long = "x".repeat(500);
        for text in ["", "ann", &long] {
            assert_eq!(kind.subject_of(text.as_bytes()), kind.subject([text]));
        }
    }

    #[test]
    fn long_values_hash_one_to_one_across_the_buffer_edge() {
        let long = "x".repeat(2000);
        let mut seen = std::collections::HashSet::new();
        for cut in 0..600 {
            assert!(seen.insert(subject(&keyring(), [("user", &long[..cut])])));
        }
        for name in ["rule", "r"] {
            assert!(seen.insert(subject(&keyring(), [(name, long.as_str())])));
        }
    }

    #[test]
    fn a_rule_never_shares_a_key_with_another() {
        let subject = subject(&keyring(), [("user", "ann")]);
        let (a, b) = (keyring().rule("a"), keyring().rule("b"));
        assert_ne!(Key::new(a, subject), Key::new(b, subject));
        assert_eq!(Key::new(a, subject).subject(a), subject);
        assert_ne!(Key::overflow(a), Key::overflow(b));
    }

    #[test]
    fn draws_are_even() {
        let mut low = 0;
        for i in 0..100_000 {
            let drawn = subject(&keyring(), [("user", i.to_string().as_str())]).draw(10_000);
            assert!(drawn < 10_000);
            low += u32::from(drawn < 2_500);
        }
        assert!(
            (24_500..25_500).contains(&low),
            "{low} of 100000 below a quarter"
        );
    }

    #[test]
    fn a_fingerprint_names_secret_and_namespace() {
        let other_secret = Keyring::new(b"another secret 16", "prod");
        let other_namespace = Keyring::new(b"a secret of sixteen", "test");
        // If this value changes, every stored fingerprint differs, and no instance starts.
        assert_eq!(keyring().fingerprint(), "237bc033e316bdc86d1773a9b80106ed");
        assert_ne!(keyring().fingerprint(), other_secret.fingerprint());
        assert_ne!(keyring().fingerprint(), other_namespace.fingerprint());
    }

    #[test]
    fn only_the_sealing_keyring_unseals() {
        let (old, new) = (keyring(), Keyring::new(b"another secret 16", "prod"));
        let (sealed, fingerprint) = (new.seal(&old), old.fingerprint());
        assert_eq!(sealed.len(), 64);
        let found = new.unseal(&sealed, &fingerprint).unwrap();
        let ann = [("user", "ann")];
        assert_eq!(subject(&found, ann), subject(&old, ann));
        assert!(old.unseal(&sealed, &fingerprint).is_none());
        assert!(new.unseal(&sealed, &new.fingerprint()).is_none());
        let mut changed = sealed.clone();
        changed.replace_range(..1, if sealed.starts_with('0') { "1" } else { "0" });
        for wrong in [&changed, &sealed[..62], "no digits", ""] {
            assert!(new.unseal(wrong, &fingerprint).is_none(), "{wrong}");
        }
    }

    #[test]
    fn debug_prints_no_secret() {
        assert_eq!(format!("{:?}", keyring()), "Keyring(***)");
    }
}
