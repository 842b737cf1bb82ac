//! Writes rules as the text of a config.

use std::fmt::Write as _;

use tollgate_rules::{ConfigError, Policy};

use crate::note::Note;
use crate::write::{comment, scalar, window};
use crate::{Imported, MAX_LIMITS};

/// The most bytes of an expression in a rule.
pub(crate) const MAX_WHEN: usize = 2048;

/// A rule to write.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) id: String,
    /// The file and line of the original.
    pub(crate) origin: String,
    /// Attributes with patterns. Each attribute must match one of its patterns.
    pub(crate) matches: Vec<(String, Vec<String>)>,
    pub(crate) when: Option<String>,
    pub(crate) per: Vec<String>,
    /// `None` for unlimited.
    pub(crate) limit: Option<u64>,
    pub(crate) seconds: u64,
    pub(crate) charge_denied: bool,
    pub(crate) shadow: bool,
}

/// Writes the config with these rules.
///
/// # Errors
/// If Tollgate rejects the config, for example because it is too large.
pub(crate) fn config(
    title: &str,
    rules: &[Rule],
    notes: Vec<Note>,
) -> Result<Imported, ConfigError> {
    let mut yaml = format!("# {}\n", comment(title));
    if !notes.is_empty() {
        yaml.push_str("#\n# Not converted exactly:\n");
        for note in &notes {
            let _ = writeln!(yaml, "# - {}", comment(&note.to_string()));
        }
    }
    yaml.push_str("version: 1\n");
    yaml.push_str("server: { grpc: 127.0.0.1:8081 }\n");
    yaml.push_str(if rules.is_empty() {
        "rules: []\n"
    } else {
        "rules:\n"
    });
    for (index, rule) in rules.iter().enumerate() {
        if index > 0 {
            yaml.push('\n');
        }
        write_rule(&mut yaml, rule);
    }
    // Parse the text as a whole config, not as a policy, because it has a `server` section.
    tollgate_config::parse("the imported config", &yaml, &|_| None)?;
    Ok(Imported {
        yaml,
        notes,
        rules: rules.len(),
    })
}

/// Returns why Tollgate rejects the rule, if it does.
pub(crate) fn rejection(rule: &Rule) -> Option<String> {
    let mut yaml = "version: 1\nrules:\n".to_owned();
    write_rule(&mut yaml, rule);
    let error = Policy::parse("rule", &yaml).err()?;
    let problem = error.problems().first()?;
    Some(problem.message().to_owned())
}

fn write_rule(yaml: &mut String, rule: &Rule) {
    let _ = writeln!(yaml, "  # {}", comment(&rule.origin));
    let _ = writeln!(yaml, "  - id: {}", scalar(&rule.id));
    let matches = rule.matches.iter().map(|(name, patterns)| {
        let patterns: Vec<String> = patterns.iter().map(|it| scalar(it)).collect();
        match patterns.as_slice() {
            [one] => format!("{}: {one}", scalar(name)),
            many => format!("{}: [{}]", scalar(name), many.join(", ")),
        }
    });
    let matches = matches.collect::<Vec<_>>().join(", ");
    let _ = writeln!(yaml, "    match: {{ {matches} }}");
    if let Some(when) = &rule.when {
        let _ = writeln!(yaml, "    when: '{}'", when.replace('\'', "''"));
    }
    if !rule.per.is_empty() {
        let per: Vec<String> = rule.per.iter().map(|name| scalar(name)).collect();
        let _ = writeln!(yaml, "    per: [{}]", per.join(", "));
    }
    yaml.push_str("    algorithm: fixed-window\n");
    let limit = rule.limit.map(|limit| limit.to_string());
    let limit = limit.as_deref().unwrap_or("unlimited");
    let _ = writeln!(yaml, "    limit: {limit}");
    let _ = writeln!(yaml, "    window: {}", window(rule.seconds));
    if rule.charge_denied {
        yaml.push_str("    charge_denied: true\n");
    }
    if rule.shadow {
        yaml.push_str("    state: shadow\n");
    }
}

/// Returns the message and the remedy for a file with more than [`MAX_LIMITS`] limits.
pub(crate) fn too_many() -> (String, &'static str) {
    (
        format!("more than {MAX_LIMITS} descriptors or limits"),
        "split the file, or use fewer aliases of large values",
    )
}
