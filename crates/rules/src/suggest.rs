//! "Did you mean": the nearest of a few words, if one is near enough to be a slip of the finger.

/// The one of `words` that `given` was probably meant to be.
pub(crate) fn nearest<'w>(
    given: &str,
    words: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    // Long inputs are no slips, and the table below is quadratic.
    if given.len() > 64 {
        return None;
    }
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let given = plain(given);
    let allowed = (given.chars().count() / 3).clamp(1, 3);
    words
        .into_iter()
        .map(|word| (distance(&given, &plain(word)), word))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Words as a sentence lists them: `a`, `b` or `c`.
pub(crate) fn one_of<'w>(words: impl IntoIterator<Item = &'w str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        None => String::new(),
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// How many letters to insert, drop, replace or swap with the next to make `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let width = b.len() + 1;
    let mut table = vec![0; (a.len() + 1) * width];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i * width + j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[(i - 1) * width + j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let dropped = table[(i - 1) * width + j] + 1;
                let inserted = table[i * width + j - 1] + 1;
                let mut best = replaced.min(dropped).min(inserted);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[(i - 2) * width + j - 2] + 1);
                }
                best
            };
        }
    }
    table[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
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
