//! The body of a denial as a template: text with fields such as `{{retry_after}}`.
//!
//! A template is parsed and checked when the config is read. In a JSON template, a field that stands
//! inside a string is written as escaped text. Elsewhere it is written as a whole JSON value, so it
//! needs no quotes. So if the template makes valid JSON for some values, it does for all values.
//!
//! No field tells a key, a subject or the name of a tenant.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::document::{
    BadValue, Field, Node, Problems, Read, Short, Text, Value, nearest, one_of, schema, section,
};

/// The longest template, in bytes.
const MAX_TEMPLATE: usize = 8 * 1024;
/// The most fields of a template. With the bound on its length, this bounds the body.
const MAX_FIELDS: usize = 64;
const MAX_CONTENT_TYPE: usize = 100;
const JSON: &str = "application/json";

/// A template for the body of a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialBody {
    content_type: String,
    is_json: bool,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A field. `in_string` says whether it stands inside a string of a JSON template.
    Field {
        field: DenialField,
        in_string: bool,
    },
}

/// The value of a field in one denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue<'v> {
    /// A text.
    Text(Cow<'v, str>),
    /// A number.
    Number(u64),
    /// The denial has no such value: `null` in JSON, or an empty text.
    Absent,
}

macro_rules! fields {
    ($( $(#[doc = $doc:literal])+ $field:ident = $name:literal, )+) => {
        /// A field of a template.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum DenialField { $( $(#[doc = $doc])+ $field, )+ }

        impl DenialField {
            /// The names of all fields.
            pub const NAMES: &[&str] = &[$($name),+];

            fn of(name: &str) -> Option<DenialField> {
                match name {
                    $( $name => Some(DenialField::$field), )+
                    _ => None,
                }
            }
        }
    };
}

fields! {
    /// The code for programs, such as `RATE_LIMIT`.
    Code = "code",
    /// The message for people.
    Message = "message",
    /// The id of the rule that denies.
    Rule = "rule",
    /// The kind of the rule: `rate`, `budget`, `quota` or `concurrency`.
    Kind = "kind",
    /// Why the rule denies, such as `exceeded`.
    Reason = "reason",
    /// The HTTP status.
    Status = "status",
    /// The HTTP status in words.
    Title = "title",
    /// Seconds until the retry time: whole, rounded up, at least 1, like `Retry-After`.
    RetryAfter = "retry_after",
    /// Milliseconds until the retry time.
    RetryAfterMillis = "retry_after_millis",
    /// The limit.
    Limit = "limit",
    /// The units that are left.
    Remaining = "remaining",
    /// When the whole limit is back, in seconds since the epoch.
    Reset = "reset",
    /// When the whole limit is back, in milliseconds since the epoch.
    ResetMillis = "reset_millis",
    /// How many seconds until the whole limit is back.
    ResetAfter = "reset_after",
    /// The window of the limit, in seconds.
    Window = "window",
    /// The names in the rule's `per`, joined with `+`, or `global`.
    Dimension = "dimension",
    /// The id of the trace that the request belongs to.
    TraceId = "trace_id",
    /// The version of the config.
    ConfigVersion = "config_version",
}

section! {
    /// The body of a denial, as a template.
    pub(crate) struct RawTemplate is "a denial body" {
        /// The text of the body. A field is written as {{name}}.
        template (required): Text = "template",
        /// The media type of the body (default application/json).
        content_type: Text = "content_type",
    }
}

/// A template as a config has it: a text, or a map with a content type.
#[derive(Debug)]
pub struct RawDenialBody(DenialBody);

impl Read for RawDenialBody {
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<RawDenialBody> {
        if !matches!(&node.value, Value::Map(_)) {
            let text = Text::read(node, problems)?;
            let body = problems.accept(node.place, DenialBody::parse(&text.0, JSON))?;
            return Some(RawDenialBody(body));
        }
        if let Value::Map(entries) = &node.value {
            let known = |name: &str| matches!(name, "template" | "content_type");
            let mut names = entries.iter().filter_map(|(key, _)| key.text());
            if !entries.is_empty() && !names.any(known) {
                let message = "the template is a map, and has to be a text";
                let help = "put the template in single quotes, or below a `|`";
                problems.report(node.place, message, help);
                return None;
            }
        }
        let raw = RawTemplate::read(node, problems)?;
        let content_type = match &raw.content_type {
            Field::Absent => JSON,
            Field::Broken { .. } => return None,
            Field::Given { at, .. } => {
                let checked = check_content_type(&at.value.0);
                problems.accept(at.place, checked)?;
                &at.value.0
            }
        };
        if raw.template.is_absent() {
            let help = "add `template`: the text of the body";
            problems.report(node.place, "a denial body needs a `template`", help);
        }
        let at = raw.template.get()?;
        let body = DenialBody::parse(&at.value.0, content_type);
        problems.accept(at.place, body).map(RawDenialBody)
    }
}

impl RawDenialBody {
    /// Returns the template.
    #[must_use]
    pub fn body(&self) -> DenialBody {
        self.0.clone()
    }
}

schema!(RawDenialBody, "DenialBody", generator => {
    "anyOf": [generator.subschema_for::<Text>(), generator.subschema_for::<RawTemplate>()],
});

impl DenialBody {
    /// Reads a template.
    ///
    /// ```
    /// use tollgate_rules::{DenialBody, DenialField, FieldValue};
    ///
    /// let body = DenialBody::parse(r#"{"error": {{code}}, "wait": "{{retry_after}} s"}"#, "application/json");
    /// let rendered = body.unwrap().render(|field| match field {
    ///     DenialField::Code => FieldValue::Text("RATE_LIMIT".into()),
    ///     _ => FieldValue::Number(3),
    /// });
    /// assert_eq!(rendered, r#"{"error": "RATE_LIMIT", "wait": "3 s"}"#);
    /// ```
    ///
    /// # Errors
    /// If the template names an unknown field, is too long, or is not valid JSON although the content
    /// type says JSON.
    pub fn parse(template: &str, content_type: &str) -> Result<DenialBody, BadValue> {
        check_content_type(content_type)?;
        if template.len() > MAX_TEMPLATE {
            let message = format!("the template is longer than {MAX_TEMPLATE} bytes");
            return Err(BadValue::new(message, "write a shorter template"));
        }
        let mut body = DenialBody {
            content_type: content_type.to_owned(),
            is_json: is_json(content_type),
            parts: Vec::new(),
        };
        let mut position = JsonPosition::default();
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("{{") {
            position.pass(before);
            body.add_text(before);
            let Some((name, after)) = after.split_once("}}") else {
                let message = "a field of the template is not closed";
                return Err(BadValue::new(message, "write fields as {{name}}"));
            };
            if body.is_json && position.after_backslash {
                let message = format!("a backslash stands before {{{{{}}}}}", Short(name));
                return Err(BadValue::new(message, "remove the backslash"));
            }
            body.parts.push(Part::Field {
                field: field(name.trim())?,
                in_string: position.in_string,
            });
            rest = after;
        }
        body.add_text(rest);
        let fields = body.parts.iter();
        let fields = fields.filter(|part| matches!(part, Part::Field { .. }));
        if fields.count() > MAX_FIELDS {
            let message = format!("the template has more than {MAX_FIELDS} fields");
            return Err(BadValue::new(message, "use fewer fields"));
        }
        body.check_json()?;
        Ok(body)
    }

    /// The media type of the body.
    #[must_use]
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Writes the body. `value` returns the value of a field.
    pub fn render<'v>(&self, mut value: impl FnMut(DenialField) -> FieldValue<'v>) -> String {
        let mut body = String::with_capacity(256);
        for part in &self.parts {
            match part {
                Part::Text(text) => body.push_str(text),
                Part::Field { field, in_string } => match (value(*field), self.is_json) {
                    (FieldValue::Number(number), _) => {
                        // Writing to a string does not fail.
                        let _ = write!(body, "{number}");
                    }
                    (FieldValue::Text(text), false) => body.push_str(&text),
                    (FieldValue::Text(text), true) => {
                        let quoted = serde_json::Value::from(text.as_ref()).to_string();
                        let inside = &quoted[1..quoted.len() - 1];
                        body.push_str(if *in_string { inside } else { &quoted });
                    }
                    (FieldValue::Absent, true) if !in_string => body.push_str("null"),
                    (FieldValue::Absent, _) => {}
                },
            }
        }
        body
    }

    fn add_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.parts.push(Part::Text(text.to_owned()));
        }
    }

    /// Checks that a JSON template makes JSON.
    fn check_json(&self) -> Result<(), BadValue> {
        if !self.is_json {
            return Ok(());
        }
        let sample = self.render(|_| FieldValue::Number(1));
        let parsed = serde_json::from_str::<serde_json::Value>(&sample);
        parsed.map(drop).map_err(|error| {
            let message = format!("the template does not make JSON: {error}");
            let help = format!(
                "with 1 in place of each field, the template is {}; a field outside of quotes gets its own quotes; \
                 for another format set `content_type`, such as text/plain",
                Short(&sample)
            );
            BadValue::new(message, help)
        })
    }
}

/// The position in a JSON text.
#[derive(Default)]
struct JsonPosition {
    in_string: bool,
    after_backslash: bool,
}

impl JsonPosition {
    fn pass(&mut self, text: &str) {
        for c in text.chars() {
            if self.after_backslash {
                self.after_backslash = false;
            } else if c == '"' {
                self.in_string = !self.in_string;
            } else if self.in_string && c == '\\' {
                self.after_backslash = true;
            }
        }
    }
}

fn field(name: &str) -> Result<DenialField, BadValue> {
    DenialField::of(name).ok_or_else(|| {
        let message = format!("a denial has no field `{}`", Short(name));
        let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
        let known = match plain.to_lowercase().as_str() {
            "retryafterseconds" | "retryin" | "wait" => Some("retry_after"),
            "retryafterms" | "retryms" => Some("retry_after_millis"),
            "dim" | "limitdim" | "per" | "scope" | "limittype" => Some("dimension"),
            "id" | "ruleid" | "rulename" | "policy" => Some("rule"),
            "resetat" | "resetepoch" | "resettime" => Some("reset"),
            "resetin" | "resetseconds" => Some("reset_after"),
            "error" | "errorcode" => Some("code"),
            "detail" | "description" | "text" => Some("message"),
            "trace" | "requestid" | "correlationid" => Some("trace_id"),
            "left" => Some("remaining"),
            "version" => Some("config_version"),
            _ => nearest(name, DenialField::NAMES.iter().copied()),
        };
        let help = match (known, plain.to_lowercase().as_str()) {
            (Some(known), _) => format!("did you mean {{{{{known}}}}}?"),
            (None, "key" | "apikey" | "subject" | "tenant" | "user" | "ip" | "plan") => format!(
                "a denial does not show subjects; {{{{dimension}}}} shows the names in `per`. \
                 The fields are {}",
                one_of(DenialField::NAMES.iter().copied())
            ),
            (None, _) => {
                let names = one_of(DenialField::NAMES.iter().copied());
                format!("the fields are {names}")
            }
        };
        BadValue::new(message, help)
    })
}

/// Returns whether a media type says JSON.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let essence = essence.to_ascii_lowercase();
    essence.ends_with("/json") || essence.ends_with("+json")
}

fn check_content_type(text: &str) -> Result<(), BadValue> {
    let is_token = |part: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
        !part.is_empty() && part.bytes().all(allowed)
    };
    let essence = text.split(';').next().unwrap_or_default().trim();
    let is_type = essence
        .split_once('/')
        .is_some_and(|(kind, sub)| is_token(kind) && is_token(sub));
    let is_visible = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    if is_type && is_visible && text.len() <= MAX_CONTENT_TYPE {
        return Ok(());
    }
    let message = format!("`{}` is not a media type", Short(text));
    let help = "write one such as application/json or text/plain; charset=utf-8";
    Err(BadValue::new(message, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, content_type: &str) -> String {
        let body = DenialBody::parse(template, content_type).unwrap();
        body.render(|field| match field {
            DenialField::Message => FieldValue::Text("say \"please\"\n".into()),
            DenialField::RetryAfter => FieldValue::Number(3),
            DenialField::Dimension => FieldValue::Text("tenant".into()),
            _ => FieldValue::Absent,
        })
    }

    #[test]
    fn values_are_written_as_their_position_needs() {
        let json = r#"{"a":{{retry_after}},"b":"{{ message }}","c":{{message}},"d":{{limit}},"e":"{{limit}}"}"#;
        assert_eq!(
            render(json, "application/problem+json; charset=utf-8"),
            r#"{"a":3,"b":"say \"please\"\n","c":"say \"please\"\n","d":null,"e":""}"#
        );
        let nested = r#"{"error":{"wait":{{retry_after}}}}"#;
        assert_eq!(render(nested, JSON), r#"{"error":{"wait":3}}"#);
        let quote = r#"{"a\"{{dimension}}":1}"#;
        assert_eq!(render(quote, JSON), r#"{"a\"tenant":1}"#);
        let plain = "{{message}}per {{dimension}}{{limit}}";
        assert_eq!(render(plain, "text/plain"), "say \"please\"\nper tenant");
    }

    #[test]
    fn wrong_templates_are_rejected() {
        for (template, content_type, says) in [
            ("{{cod}}", "text/plain", "no field `cod`"),
            ("{{code", "text/plain", "not closed"),
            (r#"{"a":{{code}}"#, JSON, "does not make JSON"),
            (r#"{"a":"\{{code}}"}"#, JSON, "backslash"),
            ("", JSON, "does not make JSON"),
            ("x", "json", "not a media type"),
            ("x", "text/plain\r\nx: y", "not a media type"),
        ] {
            let error = DenialBody::parse(template, content_type).unwrap_err();
            assert!(error.message.contains(says), "{template}: {error:?}");
        }
        let many = "{{code}}".repeat(MAX_FIELDS + 1);
        assert!(DenialBody::parse(&many, "text/plain").is_err());
        let long = "x".repeat(MAX_TEMPLATE + 1);
        assert!(DenialBody::parse(&long, "text/plain").is_err());
    }

    #[test]
    fn names_from_elsewhere_and_subjects_get_a_hint() {
        for (name, hint) in [
            ("cod", "{{code}}"),
            ("retryAfterMs", "{{retry_after_millis}}"),
            ("limit_dim", "{{dimension}}"),
            ("rule_id", "{{rule}}"),
            ("subject", "does not show subjects"),
            ("nonsense", "the fields are `code`, "),
        ] {
            let help = field(name).unwrap_err().help;
            assert!(help.contains(hint), "{name}: {help}");
        }
    }
}
