//! The command as a user sees it: each file in `cmd/` is a transcript that must stay true.
//! `TRYCMD=overwrite cargo test -p tollgate-cli --test commands` writes them again.

#[test]
fn transcripts_are_true() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}
