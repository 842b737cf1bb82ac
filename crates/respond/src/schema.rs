//! Schemas of texts that are one of several names.

use serde_json::Value;
use tollgate::{Kind, Reason};
use utoipa::openapi::schema::{Object, ObjectBuilder, Schema, SchemaType, Type};

use crate::denial::code;

/// The codes of denials.
#[must_use]
pub fn codes() -> Schema {
    let of = |kind| Reason::ALL.map(|reason| code(kind, reason));
    names(&Kind::ALL.map(of).concat(), false)
}

/// The kinds of allowances, or null.
#[must_use]
pub fn kinds_or_null() -> Schema {
    names(&Kind::ALL.map(Kind::name), true)
}

/// Returns the schema of a text that is one of `names`, or null.
#[must_use]
pub fn names(names: &[&str], or_null: bool) -> Schema {
    // Several reasons have the same code.
    let mut values: Vec<Value> = Vec::new();
    for name in names {
        if !values.contains(&(*name).into()) {
            values.push((*name).into());
        }
    }
    let mut object: Object = ObjectBuilder::new().schema_type(Type::String).build();
    if or_null {
        object.schema_type = SchemaType::from_iter([Type::String, Type::Null]);
        values.push(Value::Null);
    }
    object.enum_values = Some(values);
    object.into()
}
