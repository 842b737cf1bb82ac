//! SipHash with 128 bits of output, for hashes that live as long as a process.
//!
//! The input is a list of texts. The first word of a text has 8 bytes: its length in a byte, and its first
//! seven bytes. The following words have the other bytes, and zeros after the last one. For a text of 255 bytes
//! or more, the first word has a byte of 255 and the length. So two different lists never give the same words.
//! The function is SipHash-1-3 of these words, with the key of the caller.
//!
//! Reading words is the reason for this file: a general implementation takes bytes, which would have to be
//! copied together first. The steps are inlined by force, so that the four words of the state stay in
//! registers.

/// The key: 128 bits.
#[derive(Clone)]
pub(crate) struct SipKey {
    k0: u64,
    k1: u64,
}

impl SipKey {
    /// Returns the key in the first half of `bytes`.
    pub(crate) fn new(bytes: &[u8; 32]) -> SipKey {
        let word = |from: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(word)
        };
        SipKey {
            k0: word(0),
            k1: word(8),
        }
    }

    /// Returns a hash of no texts yet.
    #[inline]
    pub(crate) fn start(&self) -> SipHash<1, 3> {
        SipHash::new(self)
    }
}

/// A hash of the texts so far, with `C` rounds for each word and `D` rounds at the end.
pub(crate) struct SipHash<const C: usize, const D: usize> {
    v: [u64; 4],
    words: u64,
}

impl<const C: usize, const D: usize> SipHash<C, D> {
    #[inline]
    fn new(key: &SipKey) -> SipHash<C, D> {
        let SipKey { k0, k1 } = *key;
        SipHash {
            v: [
                k0 ^ 0x736f_6d65_7073_6575,
                // 0xee selects the output of 128 bits.
                k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                k0 ^ 0x6c79_6765_6e65_7261,
                k1 ^ 0x7465_6462_7974_6573,
            ],
            words: 0,
        }
    }

    #[inline(always)]
    fn rounds(mut self, rounds: usize) -> Self {
        let [mut v0, mut v1, mut v2, mut v3] = self.v;
        for _ in 0..rounds {
            v0 = v0.wrapping_add(v1);
            v2 = v2.wrapping_add(v3);
            v1 = v1.rotate_left(13) ^ v0;
            v3 = v3.rotate_left(16) ^ v2;
            v0 = v0.rotate_left(32).wrapping_add(v3);
            v2 = v2.wrapping_add(v1);
            v3 = v3.rotate_left(21) ^ v0;
            v1 = v1.rotate_left(17) ^ v2;
            v2 = v2.rotate_left(32);
        }
        self.v = [v0, v1, v2, v3];
        self
    }

    #[inline(always)]
    fn absorb(mut self, word: u64) -> Self {
        self.v[3] ^= word;
        self = self.rounds(C);
        self.v[0] ^= word;
        self
    }

    #[inline(always)]
    fn word(mut self, word: u64) -> Self {
        self.words += 1;
        self.absorb(word)
    }

    /// Adds a text. Takes and returns the hash by value, and is inlined: a reference or a call would keep the
    /// words of the state in memory.
    #[inline(always)]
    pub(crate) fn part(mut self, bytes: &[u8]) -> Self {
        let length = bytes.len() as u64;
        let Some(first) = bytes.first_chunk::<8>() else {
            return self.word(short(bytes) << 8 | length);
        };
        if length >= 255 {
            return self.long(bytes);
        }
        // The eighth byte is shifted out.
        self = self.word(u64::from_le_bytes(*first) << 8 | length);
        let (words, rest) = bytes[7..].as_chunks::<8>();
        for word in words {
            self = self.word(u64::from_le_bytes(*word));
        }
        match (rest.len(), bytes.last_chunk::<8>()) {
            (1.., Some(last)) => self.word(u64::from_le_bytes(*last) >> (64 - 8 * rest.len())),
            _ => self,
        }
    }

    #[inline(always)]
    fn long(mut self, bytes: &[u8]) -> Self {
        self = self.word((bytes.len() as u64) << 8 | 255);
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self = self.word(u64::from_le_bytes(*word));
        }
        match rest.is_empty() {
            true => self,
            false => self.word(short(rest)),
        }
    }

    /// Returns the hash.
    #[inline(always)]
    pub(crate) fn finish(self) -> u128 {
        let length = (self.words * 8) << 56;
        self.absorb(length).output()
    }

    #[inline(always)]
    fn output(mut self) -> u128 {
        self.v[2] ^= 0xee;
        self = self.rounds(D);
        let low = self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3];
        self.v[1] ^= 0xdd;
        self = self.rounds(D);
        let high = self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3];
        u128::from(high) << 64 | u128::from(low)
    }
}

/// Returns up to seven bytes as a word.
#[inline]
fn short(bytes: &[u8]) -> u64 {
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        return u64::from(first) | u64::from(last) << (8 * (bytes.len() - 4));
    }
    match *bytes {
        [] => 0,
        [a] => u64::from(a),
        [a, b] => u64::from(a) | u64::from(b) << 8,
        [a, b, c, ..] => u64::from(a) | u64::from(b) << 8 | u64::from(c) << 16,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hasher;

    use super::*;

    fn key() -> SipKey {
        let bytes = std::array::from_fn(|at| u8::try_from(at).unwrap());
        SipKey::new(&bytes)
    }

    /// Hashes plain bytes, as the specification does.
    fn of_bytes<const C: usize, const D: usize>(
        mut hash: SipHash<C, D>,
        bytes: &[u8],
    ) -> SipHash<C, D> {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            hash = hash.absorb(u64::from_le_bytes(*word));
        }
        hash.absorb(short(rest) | (bytes.len() as u64) << 56)
    }

    /// The vectors of the reference implementation: the bytes 0, 1, 2 and so on, with the key 0 to 15.
    #[test]
    fn two_four_gives_the_reference_vectors() {
        let hex = |bytes: &[u8]| {
            let hash = of_bytes(SipHash::<2, 4>::new(&key()), bytes).output();
            let hex = hash.to_le_bytes().map(|byte| format!("{byte:02X}"));
            hex.concat()
        };
        assert_eq!(hex(&[]), "A3817F04BA25A8E66DF67214C7550293");
        assert_eq!(hex(&[0]), "DA87C1D86B99AF44347659119B22FC45");
    }

    /// The standard library has SipHash-1-3 with 64 bits of output and a key of zeros.
    #[test]
    fn one_three_agrees_with_the_standard_library() {
        let bytes: Vec<u8> = (0..100).collect();
        for length in 0..bytes.len() {
            let mut hash = SipHash::<1, 3>::new(&SipKey { k0: 0, k1: 0 });
            hash.v[1] ^= 0xee;
            let mut hash = of_bytes(hash, &bytes[..length]);
            hash.v[2] ^= 0xff;
            let [a, b, c, d] = hash.rounds(3).v;
            let mut standard = std::hash::DefaultHasher::new();
            standard.write(&bytes[..length]);
            assert_eq!(a ^ b ^ c ^ d, standard.finish(), "{length}");
        }
    }

    /// Texts of different lengths have different hashes, and so have texts that are cut at different places.
    #[test]
    fn length_and_cut_matter() {
        let text = [b'x'; 600];
        let mut seen = HashSet::new();
        for length in 0..text.len() {
            let hash = key().start().part(&text[..length]);
            assert!(seen.insert(hash.finish()), "{length}");
        }
        for cut in 0..=300 {
            let hash = key().start().part(&text[..cut]);
            let hash = hash.part(&text[cut..300]);
            assert!(seen.insert(hash.finish()), "{cut}");
        }
    }

    /// Two different lists give different words, even if the bytes of one text look like the length of the next.
    #[test]
    fn bytes_like_a_length_do_not_move_the_cut() {
        let hash = |parts: &[&[u8]]| {
            let start = key().start();
            let hash = parts.iter().fold(start, |hash, part| hash.part(part));
            hash.finish()
        };
        let seven = b"abcdefg";
        let next = [1, b'z', 0, 0, 0, 0, 0, 0];
        let joined = [&seven[..], &next].concat();
        assert_ne!(hash(&[seven, b"z"]), hash(&[&joined]));
        assert_ne!(hash(&[seven, b""]), hash(&[seven]));
        assert_ne!(hash(&[b"\0"]), hash(&[b"\0\0"]));
    }

    #[test]
    fn each_byte_of_a_text_matters() {
        for length in [1, 3, 7, 8, 9, 15, 16, 23, 254, 255, 300] {
            let text = vec![b'x'; length];
            let hash = |text: &[u8]| key().start().part(text).finish();
            for at in 0..length {
                let mut other = text.clone();
                other[at] = b'y';
                assert_ne!(hash(&other), hash(&text), "byte {at} of {length}");
            }
        }
    }
}
