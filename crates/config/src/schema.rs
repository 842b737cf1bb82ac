//! The JSON schema of the config, for editors. It comes from the declarations that also read it.

use schemars::generate::SchemaSettings;

use crate::config::RawConfig;

/// The JSON schema (draft 2020-12) of a config file.
///
/// ```
/// let schema = tollgate_config::json_schema();
/// assert_eq!(schema["type"], "object");
/// assert!(schema["properties"]["rules"].is_object());
/// ```
#[must_use]
pub fn json_schema() -> serde_json::Value {
    let mut schema = SchemaSettings::draft2020_12()
        .into_generator()
        .into_root_schema_for::<RawConfig>();
    schema.insert("title".to_owned(), "Tollgate config".into());
    schema.to_value()
}
