//! Takes any bytes as a config and as an override. They are rejected with a message, or compiled and used for
//! one request. Nothing may panic.
//!
//! Good seeds: `cargo fuzz run config fuzz/corpus/config crates/config/tests/wrong`.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use tollgate_config::{Attributes, Override, RequestLimits, diff, parse};
use tollgate_core::Keyring;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let env = |name: &str| (name.len() < 8).then(|| "a value of 16 bytes".to_owned());
    let overriding = Override::parse(&text, 0);
    if let Ok(it) = &overriding {
        assert!(!it.name().is_empty() && !it.effect().is_empty());
    }
    let overrides: Vec<_> = [
        r#"{"scale":"50%","for":"1h","reason":"x"}"#,
        r#"{"tenant":"acme","scale":"7%","reason":"x"}"#,
    ]
    .into_iter()
    .filter_map(|text| Override::parse(text, 0).ok())
    .chain(overriding)
    .map(Arc::new)
    .collect();
    match parse("fuzz.yaml", &text, &env) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!error.render_color().is_empty());
        }
        Ok(config) => {
            let keyring = Keyring::new(b"0123456789abcdef", &config.namespace);
            assert!(diff(&config, &config).is_empty());
            let rules = config.compile(keyring, &overrides);
            let request = Attributes::from([
                ("tenant", "acme"),
                ("api_key", ""),
                ("action", "search"),
                ("n", "42"),
                ("a", "*"),
            ]);
            let request_limits = RequestLimits::default();
            let resolution = rules.resolve(&request, &request_limits);
            assert_eq!(resolution.charges.len(), resolution.rules.len());
            assert_eq!(rules.explain(&request).len(), rules.rules().len());
        }
    }
});
