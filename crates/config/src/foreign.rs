//! Recognises configs of other programs, so that the error names the command that converts them.

use tollgate_rules::document::{Node, Place, Problems, Value};

/// Reports a config of another program, in the file `name`. Returns whether it is one.
pub(crate) fn report(root: &Node, name: &str, problems: &mut Problems<'_>) -> bool {
    let Some((what, help)) = recognise(root, name) else {
        return false;
    };
    let start = Place::new(root.place.start, root.place.start);
    problems.report(start, format!("this is a config of {what}"), help);
    true
}

fn recognise(root: &Node, name: &str) -> Option<(&'static str, String)> {
    let into = "> tollgate.yaml";
    match &root.value {
        Value::Map(_) if has(root, "rules") || has(root, "version") => None,
        Value::Map(_) if has(root, "domain") && has(root, "descriptors") => Some((
            "Envoy's rate limit service",
            format!("convert it: tollgate import envoy-ratelimit {name} {into}"),
        )),
        Value::Map(_) if has(root, "static_resources") || has(root, "dynamic_resources") => Some((
            "Envoy itself",
            "Tollgate reads the config of Envoy's rate limit service, with a `domain`: \
             tollgate import envoy-ratelimit FILE"
                .to_owned(),
        )),
        Value::List(limits) => {
            let first = limits.first()?;
            let is_limit = has(first, "max_value") && has(first, "seconds");
            is_limit.then(|| {
                let help = format!("convert it: tollgate import limitador {name} {into}");
                ("Limitador", help)
            })
        }
        _ => None,
    }
}

/// Returns whether a node is a map with this field.
fn has(node: &Node, field: &str) -> bool {
    match &node.value {
        Value::Map(entries) => entries.iter().any(|(key, _)| key.text() == Some(field)),
        _ => false,
    }
}
