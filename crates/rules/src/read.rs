//! Nodes to typed fields: the small language in which `raw` states what a config may contain.
//!
//! `section!` declares a map with named fields and `words!` a choice of words; from the same
//! declaration come the reader, which reports every problem and goes on, and the JSON schema. A
//! field that could not be read is `Broken`, not `Absent`, so that nothing is reported twice.

use crate::error::{Place, Problems};
use crate::suggest::{nearest, one_of};
use crate::units::Short;
use crate::yaml::{Node, Value};

/// A value that can be read from a node.
pub(crate) trait Read: Sized {
    /// Reads it, or reports why not.
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Self>;
}

/// A field of a section.
#[derive(Debug)]
pub(crate) enum Field<T> {
    Absent,
    /// Given, but unreadable: that was reported.
    Broken {
        key: Place,
    },
    Given {
        key: Place,
        at: At<T>,
    },
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) place: Place,
    pub(crate) value: T,
}

impl<T> Field<T> {
    pub(crate) fn get(&self) -> Option<&At<T>> {
        match self {
            Field::Given { at, .. } => Some(at),
            Field::Absent | Field::Broken { .. } => None,
        }
    }

    pub(crate) fn value(&self) -> Option<&T> {
        self.get().map(|at| &at.value)
    }

    /// Where the name of the field stands, if it was given at all.
    pub(crate) fn key(&self) -> Option<Place> {
        match self {
            Field::Absent => None,
            Field::Broken { key } | Field::Given { key, .. } => Some(*key),
        }
    }

    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Field::Absent)
    }
}

impl<T: Read> Field<T> {
    pub(crate) fn fill(
        &mut self,
        name: &str,
        key: Place,
        node: &Node,
        problems: &mut Problems<'_>,
    ) {
        if let Some(first) = self.key() {
            let line = problems.line_of(first);
            problems.report(
                key,
                format!("`{name}` is given twice"),
                format!("it was first given on line {line}: keep one of the two"),
            );
            return;
        }
        *self = match T::read(node, problems) {
            None => Field::Broken { key },
            Some(value) => Field::Given {
                key,
                at: At {
                    place: node.place,
                    value,
                },
            },
        };
    }
}

/// Reports that a node is not what was wanted.
pub fn wanted(what: &str, help: &str, node: &Node, problems: &mut Problems<'_>) {
    if !node.is_broken() {
        let quoted = node.text().is_some_and(|_| !node.is_null());
        let message = if quoted && problems.hides(node.place) {
            format!("expected {what}")
        } else {
            format!("expected {what}, found {}", node.describe())
        };
        problems.report(node.place, message, help);
    }
}

/// The entries of a map, with names as text.
pub fn entries<'n>(
    node: &'n Node,
    what: &str,
    problems: &mut Problems<'_>,
) -> Option<Vec<(&'n str, Place, &'n Node)>> {
    let Value::Map(entries) = &node.value else {
        wanted(
            &format!("{what}, a map of names to values"),
            "write `name: value`, one per line, or leave it out",
            node,
            problems,
        );
        return None;
    };
    let mut named = Vec::with_capacity(entries.len());
    for (key, value) in entries.iter() {
        match key.text() {
            Some(name) => named.push((name, key.place, value)),
            None => wanted("a name", "the keys of a map are names", key, problems),
        }
    }
    Some(named)
}

/// Reports a name that is not a field.
pub fn unknown_field(
    name: &str,
    place: Place,
    what: &str,
    fields: &[&str],
    problems: &mut Problems<'_>,
) {
    let help = if name == "<<" {
        "merge keys are not read: use an alias for a whole value, or repeat the fields".to_owned()
    } else if let Some(meant) = nearest(name, fields.iter().copied()) {
        format!("did you mean `{meant}`?")
    } else {
        format!("the fields of {what} are {}", fields.join(", "))
    };
    let message = if problems.hides(place) {
        format!("this is not a field of {what}")
    } else {
        format!("`{}` is not a field of {what}", Short(name))
    };
    problems.report(place, message, help);
}

/// Declares a map with named fields: reader and schema.
macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        struct $name:ident is $what:literal {
            $( $(#[doc = $field_doc:literal])+ $field:ident $(($required:ident))? : $ty:ty = $key:literal, )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug)]
        pub(crate) struct $name {
            $( pub(crate) $field: $crate::read::Field<$ty>, )+
        }

        impl $name {
            const FIELDS: &[&str] = &[$($key),+];
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $crate::read::Field::Absent, )+ }
            }
        }

        impl $crate::read::Read for $name {
            fn read(node: &$crate::yaml::Node, problems: &mut $crate::error::Problems<'_>) -> Option<Self> {
                let mut this = Self::default();
                for (name, place, value) in $crate::read::entries(node, $what, problems)? {
                    match name {
                        $( $key => this.$field.fill(name, place, value, problems), )+
                        _ => $crate::read::unknown_field(name, place, $what, Self::FIELDS, problems),
                    }
                }
                Some(this)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).trim_start_matches("Raw").into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut properties = serde_json::Map::new();
                #[allow(unused_mut)]
                let mut required: Vec<&str> = Vec::new();
                $(
                    let mut schema = generator.subschema_for::<$ty>();
                    schema.insert("description".to_owned(), $crate::read::prose(&[$($field_doc),+]).into());
                    properties.insert($key.to_owned(), schema.to_value());
                    $( $crate::read::$required(&mut required, $key); )?
                )+
                schemars::json_schema!({
                    "type": "object",
                    "description": $crate::read::prose(&[$($doc),+]),
                    "properties": properties,
                    "required": required,
                    "additionalProperties": false,
                })
            }
        }
    };
}
pub(crate) use section;

/// Marks a field of a section as required in the schema.
pub(crate) fn required(names: &mut Vec<&str>, name: &'static str) {
    names.push(name);
}

/// Doc comments as running text.
pub(crate) fn prose(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

/// Declares a choice of words: reader and schema.
macro_rules! words {
    (
        $(#[doc = $doc:literal])+
        $vis:vis enum $name:ident is $what:literal {
            $( $(#[doc = $word_doc:literal])+ $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $( $(#[doc = $word_doc])+ $variant, )+ }

        impl $name {
            const WORDS: &[&str] = &[$($word),+];

            /// The word of the config.
            #[must_use]
            #[allow(dead_code)]
            $vis fn name(self) -> &'static str {
                match self { $( $name::$variant => $word, )+ }
            }
        }

        impl $crate::read::Read for $name {
            fn read(node: &$crate::yaml::Node, problems: &mut $crate::error::Problems<'_>) -> Option<Self> {
                match node.text() {
                    $( Some($word) => Some($name::$variant), )+
                    _ => {
                        $crate::read::no_such_word($what, Self::WORDS, node, problems);
                        None
                    }
                }
            }
        }

        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "enum": Self::WORDS })
            }
        }
    };
}
pub(crate) use words;

/// Reports a word that is none of those known.
pub(crate) fn no_such_word(what: &str, words: &[&str], node: &Node, problems: &mut Problems<'_>) {
    let help = match node
        .text()
        .and_then(|text| nearest(text, words.iter().copied()))
    {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("write {}", one_of(words.iter().copied())),
    };
    wanted(what, &help, node, problems);
}
