//! Ids of rules: readable, valid, unique, and the same each time a file is imported.

use std::collections::HashSet;

/// The most bytes of an id.
const MAX_ID: usize = 64;
/// How many digits of a hash are added to an id that is too long or already taken.
const DIGITS: usize = 8;

/// Hands out ids.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    taken: HashSet<String>,
}

impl Ids {
    /// Returns an id made of these parts. If it is too long or taken, it ends with digits of the hash of
    /// `whole`, which identifies the rule.
    pub(crate) fn id(&mut self, parts: &[String], whole: &str) -> String {
        let parts = parts.iter().map(|part| readable(part));
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        let base = match parts.is_empty() {
            true => "rule".to_owned(),
            false => parts.join("."),
        };
        if base.len() <= MAX_ID && self.taken.insert(base.clone()) {
            return base;
        }
        // A second attempt is needed only if two hashes agree.
        for attempt in 0u32.. {
            let hash = blake3::hash(format!("{attempt} {whole}").as_bytes()).to_hex();
            let room = MAX_ID - DIGITS - 1;
            let head = base.get(..room).unwrap_or(&base);
            let id = format!("{}-{}", head.trim_end_matches(['-', '.']), &hash[..DIGITS]);
            if self.taken.insert(id.clone()) {
                return id;
            }
        }
        base
    }
}

/// Replaces each run of characters that an id may not have by one dash.
fn readable(text: &str) -> String {
    let mut id = String::with_capacity(text.len().min(MAX_ID));
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || matches!(c, '_' | '.') {
            id.push(c);
        } else if !id.is_empty() && !id.ends_with('-') {
            id.push('-');
        }
    }
    id.trim_matches(['-', '.', '_']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ids: &mut Ids, parts: &[&str]) -> String {
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        ids.id(&parts, &parts.join("\n"))
    }

    #[test]
    fn ids_are_readable() {
        let mut ids = Ids::default();
        let parts = ["shop", "path-/v1/*", "user_id"];
        assert_eq!(id(&mut ids, &parts), "shop.path-v1.user_id");
        assert_eq!(id(&mut ids, &["ümlaut", "***"]), "mlaut");
        assert_eq!(id(&mut ids, &["*"]), "rule");
    }

    #[test]
    fn taken_id_gets_the_same_suffix_each_time() {
        let twice = || {
            let mut ids = Ids::default();
            [id(&mut ids, &["a", "/x"]), id(&mut ids, &["a", "x/"])]
        };
        let [first, second] = twice();
        assert_eq!(first, "a.x");
        assert!(second.starts_with("a.x-") && second.len() == 12, "{second}");
        assert_eq!([first, second], twice());
    }

    #[test]
    fn long_id_is_cut_and_stays_unique() {
        let mut ids = Ids::default();
        let long = "x".repeat(100);
        let (first, second) = (id(&mut ids, &[&long]), id(&mut ids, &[&long, "y"]));
        assert_eq!(first.len(), 64);
        assert_ne!(first, second);
    }
}
