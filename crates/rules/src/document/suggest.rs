//! "Did you mean": the nearest of a few words, if one is near enough to be a typing error.

/// Returns the word of `words` that was probably meant by `given`.
pub fn nearest<'w>(given: &str, words: impl IntoIterator<Item = &'w str>) -> Option<&'w str> {
    // A long input is not a typing error, and the cost of a distance is quadratic.
    if given.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let given = plain(given);
    let allowed = (given.chars().count() / 3).clamp(1, 3);
    words
        .into_iter()
        .map(|word| (strsim::osa_distance(&given, &plain(word)), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns the remedy for a wrong word: the word of `words` that was probably meant, or `otherwise`.
pub fn suggestion<'w>(
    given: &str,
    words: impl IntoIterator<Item = &'w str>,
    otherwise: impl Into<String>,
) -> String {
    match nearest(given, words) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => otherwise.into(),
    }
}

/// Lists words as a sentence does: `a`, `b` or `c`.
pub fn one_of<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_are_recognised_and_other_words_are_not() {
        let words = ["limit", "window", "burst", "on_store_failure"];
        assert_eq!(nearest("burts", words), Some("burst"));
        assert_eq!(nearest("Limit", words), Some("limit"));
        assert_eq!(nearest("on-store-failure", words), Some("on_store_failure"));
        assert_eq!(nearest("colour", words), None);
        assert_eq!(nearest(&"x".repeat(1000), words), None);
    }

    #[test]
    fn lists_read_as_a_sentence() {
        assert_eq!(one_of([]), "");
        assert_eq!(one_of(["a"]), "`a`");
        assert_eq!(one_of(["a", "b", "c"]), "`a`, `b` or `c`");
    }
}
