//! Every crate under `crates/` can be published: its manifest says what crates.io asks for.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::fs;
use std::path::{Path, PathBuf};

fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let entries = fs::read_dir(root).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the value of a field, which must be there and on one line.
fn field<'a>(manifest: &'a str, name: &str, path: &Path) -> &'a str {
    let prefix = format!("{name} = ");
    let value = manifest.lines().find_map(|line| line.strip_prefix(&prefix));
    value.unwrap_or_else(|| panic!("{} lacks `{name}`", path.display()))
}

#[test]
fn every_crate_has_the_metadata_of_a_package() {
    for path in crates() {
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap();
        assert!(field(&manifest, "description", &path).len() > 20);
        let keywords = field(&manifest, "keywords", &path).matches(',').count() + 1;
        assert!(keywords <= 5, "{}: at most 5 keywords", path.display());
        field(&manifest, "categories", &path);
        assert!(manifest.contains("license.workspace = true"));
        let readme = field(&manifest, "readme", &path).trim_matches('"');
        assert!(path.join(readme).is_file(), "{}: {readme}", path.display());
        assert!(!manifest.contains("publish"), "{}", path.display());
    }
}
