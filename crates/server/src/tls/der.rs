//! Reads nested values of certificates: a tag, a length and the content (DER).

/// Splits off the first value, which must have this tag. Returns its content and the bytes after it.
pub(super) fn value(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    any_value(bytes).filter(|_| bytes.first() == Some(&tag))
}

/// Splits off the first value. Returns its content and the bytes after it.
pub(super) fn any_value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = bytes.get(1..)?.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // The length follows in this many bytes. Four are enough for any certificate.
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = digits
                .iter()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// Returns the tags and contents of the values in `bytes`, up to the first that cannot be read.
pub(super) fn values(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let tag = *bytes.first()?;
        let (content, rest) = any_value(bytes)?;
        bytes = rest;
        Some((tag, content))
    })
}
