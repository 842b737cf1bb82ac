//! Any bytes as a config: refused in words, or compiled and asked once. Nothing may panic.
//!
//! Good seeds: `cargo fuzz run config fuzz/corpus/config crates/rules/tests/wrong`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate_core::Keyring;
use tollgate_rules::{Attributes, RuleSet, parse};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    let env = |name: &str| (name.len() < 8).then(|| "a value of 16 bytes".to_owned());
    match parse("fuzz.yaml", &text, &env) {
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!error.render_color().is_empty());
        }
        Ok(config) => {
            let keyring = Keyring::new(b"0123456789abcdef", &config.namespace);
            let rules = RuleSet::compile(&config, keyring);
            let request = Attributes::from([
                ("tenant", "acme"),
                ("api_key", ""),
                ("action", "search"),
                ("n", "42"),
                ("a", "*"),
            ]);
            let borne = Borne::default();
            let resolution = rules.resolve(&request, &borne);
            assert_eq!(resolution.charges.len(), resolution.rules.len());
            assert_eq!(rules.explain(&request).len(), rules.rules().len());
        }
    }
});
