//! Turns nodes into typed fields. With the macros of this module a crate declares what a file may
//! contain.
//!
//! `section!` declares a map with named fields, and `words!` declares a choice of words. Each
//! declaration yields a reader that reports every problem and then goes on. With the feature `schema`,
//! a declaration also yields the JSON schema. A field that could not be read is `Broken`, not `Absent`,
//! so that no problem is reported twice.

use super::{Node, Place, Problems, Short, Value, elsewhere, one_of, suggestion};

/// A value that can be read from a node.
pub trait Read: Sized {
    /// Reads the value, or reports why it cannot be read.
    fn read(node: &Node, problems: &mut Problems<'_>) -> Option<Self>;
}

/// A field of a section.
#[derive(Debug)]
pub enum Field<T> {
    /// Not given.
    Absent,
    /// Given, but unreadable. The problem was reported.
    Broken {
        /// The position of the field's name.
        key: Place,
    },
    /// Given and read.
    Given {
        /// The position of the field's name.
        key: Place,
        /// The field's value.
        at: At<T>,
    },
}

/// A value and its position.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The position of the value.
    pub place: Place,
    /// The value.
    pub value: T,
}

impl<T> Field<T> {
    /// The value and its place, if it was given and could be read.
    pub fn get(&self) -> Option<&At<T>> {
        match self {
            Field::Given { at, .. } => Some(at),
            Field::Absent | Field::Broken { .. } => None,
        }
    }

    /// The value, if it was given and could be read.
    pub fn value(&self) -> Option<&T> {
        self.get().map(|at| &at.value)
    }

    /// The position of the field's name, if the field was given at all.
    pub fn key(&self) -> Option<Place> {
        match self {
            Field::Absent => None,
            Field::Broken { key } | Field::Given { key, .. } => Some(*key),
        }
    }

    /// Whether the field was not given.
    pub fn is_absent(&self) -> bool {
        matches!(self, Field::Absent)
    }
}

impl<T: Read> Field<T> {
    /// Reads the value of the field from `node`, or reports that the field was given before.
    pub fn fill(&mut self, name: &str, key: Place, node: &Node, problems: &mut Problems<'_>) {
        if let Some(first) = self.key() {
            let line = problems.line_of(first);
            let help = format!("the first one is on line {line}: keep one of the two");
            return problems.report(key, format!("`{name}` is given twice"), help);
        }
        *self = match T::read(node, problems) {
            None => Field::Broken { key },
            Some(value) => {
                let place = node.place;
                let at = At { place, value };
                Field::Given { key, at }
            }
        };
    }
}

/// Reports that a node is not what was expected.
pub fn wanted(what: &str, help: &str, node: &Node, problems: &mut Problems<'_>) {
    if !node.is_broken() {
        let quoted = node.text().is_some_and(|_| !node.is_null());
        let message = match quoted && problems.hides(node.place) {
            true => format!("expected {what}"),
            false => format!("expected {what}, found {}", node.describe()),
        };
        problems.report(node.place, message, help);
    }
}

/// Returns the entries of a map, with their names as text. Reports a node that is not a map, and keys
/// that are not text.
pub fn entries<'n>(
    node: &'n Node,
    what: &str,
    problems: &mut Problems<'_>,
) -> Option<Vec<(&'n str, Place, &'n Node)>> {
    let Value::Map(entries) = &node.value else {
        let what = format!("{what}, a map of names to values");
        let help = "write `name: value`, one per line, or leave it out";
        wanted(&what, help, node, problems);
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
    let merge =
        "merge keys are not supported: use an alias for a whole value, or repeat the fields";
    let all = format!("the fields of {what} are {}", fields.join(", "));
    let help = match name {
        "<<" => merge.to_owned(),
        _ => match elsewhere::field(what, name) {
            Some(help) => help.to_owned(),
            None => suggestion(name, fields.iter().copied(), all),
        },
    };
    let message = match problems.hides(place) {
        true => format!("this is not a field of {what}"),
        false => format!("`{}` is not a field of {what}", Short(name)),
    };
    problems.report(place, message, help);
}

/// Declares a map with named fields: its reader and its schema. A line `..name: Section` at the end
/// adds the fields of another section to the same map.
#[macro_export]
#[doc(hidden)]
macro_rules! section {
    (
        $(#[doc = $doc:literal])+
        $vis:vis struct $name:ident is $what:literal {
            $( $(#[doc = $field_doc:literal])+ $field:ident $(($required:ident))? : $ty:ty = $key:literal, )+
            $( .. $flat:ident : $flat_ty:ty )?
        }
    ) => {
        $(#[doc = $doc])+
        #[derive(Debug)]
        $vis struct $name {
            $( pub(crate) $field: $crate::document::Field<$ty>, )+
            $( pub(crate) $flat: $flat_ty, )?
        }

        impl Default for $name {
            fn default() -> Self {
                Self {
                    $( $field: $crate::document::Field::Absent, )+
                    $( $flat: <$flat_ty>::default(), )?
                }
            }
        }

        impl $crate::document::Section for $name {
            fn fields() -> Vec<&'static str> {
                #[allow(unused_mut)]
                let mut fields = vec![$($key),+];
                $( fields.extend(<$flat_ty as $crate::document::Section>::fields()); )?
                fields
            }

            fn take(
                &mut self,
                name: &str,
                key: $crate::document::Place,
                node: &$crate::document::Node,
                problems: &mut $crate::document::Problems<'_>,
            ) -> bool {
                match name {
                    $( $key => self.$field.fill(name, key, node, problems), )+
                    $( _ if $crate::document::Section::take(&mut self.$flat, name, key, node, problems) => {} )?
                    _ => return false,
                }
                true
            }
        }

        impl $crate::document::Read for $name {
            fn read(
                node: &$crate::document::Node,
                problems: &mut $crate::document::Problems<'_>,
            ) -> Option<Self> {
                $crate::document::read_section($what, node, problems)
            }
        }

        #[cfg(feature = "schema")]
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).trim_start_matches("Raw").into()
            }

            fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                let mut schema = $crate::document::object_schema(&[$($doc),+]);
                $(
                    let field = generator.subschema_for::<$ty>();
                    let required = [$( stringify!($required) )?].contains(&"required");
                    $crate::document::add_field(&mut schema, $key, field, &[$($field_doc),+], required);
                )+
                $(
                    let more = <$flat_ty as schemars::JsonSchema>::json_schema(generator);
                    $crate::document::add_fields(&mut schema, &more);
                )?
                schema
            }
        }
    };
}

/// A map with named fields, declared by `section!`.
pub trait Section: Default {
    /// The names of the fields.
    fn fields() -> Vec<&'static str>;

    /// Reads the field `name` from `node`. Returns `false` if the section has no field of this name.
    fn take(&mut self, name: &str, key: Place, node: &Node, problems: &mut Problems<'_>) -> bool;
}

/// Reads a section, called `what` in messages, and reports unknown fields.
#[doc(hidden)]
pub fn read_section<S: Section>(what: &str, node: &Node, problems: &mut Problems<'_>) -> Option<S> {
    let mut section = S::default();
    for (name, place, value) in entries(node, what, problems)? {
        if !section.take(name, place, value, problems) {
            unknown_field(name, place, what, &S::fields(), problems);
        }
    }
    Some(section)
}

/// Starts the schema of a map. Fields are added later.
#[cfg(feature = "schema")]
#[doc(hidden)]
#[must_use]
pub fn object_schema(doc: &[&str]) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "description": prose(doc),
        "properties": {},
        "required": [],
        "additionalProperties": false,
    })
}

/// Adds a field to the schema of a map.
#[cfg(feature = "schema")]
#[doc(hidden)]
pub fn add_field(
    schema: &mut schemars::Schema,
    key: &str,
    mut field: schemars::Schema,
    doc: &[&str],
    required: bool,
) {
    field.insert("description".to_owned(), prose(doc).into());
    let mut more = object_schema(&[]);
    if let Some(properties) = more.get_mut("properties") {
        properties[key] = field.to_value();
    }
    if let (Some(names), true) = (more.get_mut("required"), required) {
        *names = serde_json::json!([key]);
    }
    add_fields(schema, &more);
}

/// Adds the fields of one map to the schema of another.
#[cfg(feature = "schema")]
#[doc(hidden)]
pub fn add_fields(schema: &mut schemars::Schema, more: &schemars::Schema) {
    let of = |name: &str| more.get(name).cloned().unwrap_or_default();
    let properties = schema.get_mut("properties");
    if let Some(all) = properties.and_then(|it| it.as_object_mut())
        && let serde_json::Value::Object(more) = of("properties")
    {
        all.extend(more);
    }
    let required = schema.get_mut("required");
    if let Some(all) = required.and_then(|it| it.as_array_mut())
        && let serde_json::Value::Array(more) = of("required")
    {
        all.extend(more);
    }
}

/// Joins the lines of a doc comment into running text.
#[cfg(feature = "schema")]
fn prose(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ")
}

/// Declares a choice of words: its reader and its schema.
#[macro_export]
#[doc(hidden)]
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

            /// The value's name in the config.
            #[must_use]
            #[allow(dead_code)]
            $vis fn name(self) -> &'static str {
                match self { $( $name::$variant => $word, )+ }
            }
        }

        impl $crate::document::Read for $name {
            fn read(
                node: &$crate::document::Node,
                problems: &mut $crate::document::Problems<'_>,
            ) -> Option<Self> {
                match node.text() {
                    $( Some($word) => Some($name::$variant), )+
                    _ => {
                        $crate::document::no_such_word($what, Self::WORDS, node, problems);
                        None
                    }
                }
            }
        }

        $crate::schema!($name, stringify!($name), _generator => { "enum": Self::WORDS });
    };
}

/// Implements `JsonSchema` for a type with a schema that is written beside the type's reader.
/// `generator` makes the schemas of other types. A type parameter is written in brackets before the
/// type.
#[macro_export]
#[doc(hidden)]
macro_rules! schema {
    ([$t:ident] $ty:ty, $name:expr, $generator:ident => $schema:tt) => {
        $crate::schema!(@ (<$t: schemars::JsonSchema>) $ty, $name, $generator => $schema);
    };
    (@ ($($generics:tt)*) $ty:ty, $name:expr, $generator:ident => $schema:tt) => {
        #[cfg(feature = "schema")]
        impl $($generics)* schemars::JsonSchema for $ty {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
    ($ty:ty, $name:expr, $generator:ident => $schema:tt) => {
        $crate::schema!(@ () $ty, $name, $generator => $schema);
    };
}

/// Reports a word that is not one of `words`.
pub fn no_such_word(what: &str, words: &[&str], node: &Node, problems: &mut Problems<'_>) {
    let all = format!("write {}", one_of(words.iter().copied()));
    let help = match node.text() {
        Some(text) => match elsewhere::word(what, text) {
            Some(help) => help.to_owned(),
            None => suggestion(text, words.iter().copied(), all),
        },
        None => all,
    };
    wanted(what, &help, node, problems);
}
