//! Ids of rules: readable, valid, unique, and the same whenever the same file is imported.

use std::collections::HashSet;

/// The longest id of a rule.
const MAX_ID: usize = 64;
/// How many digits tell apart what is too long or too alike.
const DIGITS: usize = 8;

/// Gives out ids.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    taken: HashSet<String>,
}

impl Ids {
    /// An id of these parts. `whole` is all that tells the rule from others: where the parts are too
    /// long, or taken, some digits of its hash are added.
    pub(crate) fn id(&mut self, parts: &[String], whole: &str) -> String {
        let parts: Vec<String> = parts.iter().map(|part| readable(part)).collect();
        let parts: Vec<&str> = parts
            .iter()
            .map(String::as_str)
            .filter(|part| !part.is_empty())
            .collect();
        let joined = parts.join(".");
        let base = if joined.is_empty() {
            "rule".to_owned()
        } else {
            joined
        };
        if base.len() <= MAX_ID && self.taken.insert(base.clone()) {
            return base;
        }
        // The loop ends at once unless two hashes agree.
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

/// The letters of `text` that an id may have; one dash for each run of others.
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
        assert_eq!(
            id(&mut ids, &["shop", "path-/v1/*", "user_id"]),
            "shop.path-v1.user_id"
        );
        assert_eq!(id(&mut ids, &["ümlaut", "***"]), "mlaut");
        assert_eq!(id(&mut ids, &["*"]), "rule");
    }

    #[test]
    fn equal_ids_are_told_apart_the_same_way_each_time() {
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
    fn long_ids_are_cut() {
        let mut ids = Ids::default();
        let long = "x".repeat(100);
        let (first, second) = (id(&mut ids, &[&long]), id(&mut ids, &[&long, "y"]));
        assert_eq!(first.len(), 64);
        assert_ne!(first, second);
    }
}
