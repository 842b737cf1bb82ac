//! The command as a user sees it. Each file in `cmd/` is a transcript, and the command must still print
//! the same. `TRYCMD=overwrite cargo test -p tollgate-cli --test commands` writes the transcripts
//! again.

#[test]
fn transcripts_are_true() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}
