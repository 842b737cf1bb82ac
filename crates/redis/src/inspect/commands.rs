//! Checks that the server runs every command of the scripts for this user.

use redis::RedisError;
use redis::aio::MultiplexedConnection;

use super::finding::Finding;
use crate::startup::RIGHTS;

/// Tries every command of the scripts without changing anything.
const COMMANDS: &str = include_str!("../../lua/commands.lua");

/// Tries the commands on `key`, which must not exist.
pub(super) async fn check(connection: &mut MultiplexedConnection, key: &[u8]) -> Finding {
    let mut command = redis::cmd("EVAL");
    command.arg(COMMANDS).arg(1).arg(key);
    let answer: Result<(usize, Vec<(String, String)>), RedisError> =
        command.query_async(connection).await;
    match answer {
        Ok((count, failed)) => judge(count, &failed),
        Err(error) => judge(0, &[("EVAL".to_owned(), error.to_string())]),
    }
}

fn judge(count: usize, failed: &[(String, String)]) -> Finding {
    let Some((_, why)) = failed.first() else {
        let found = format!("runs all {count} commands of the scripts");
        return Finding::ok("commands", found);
    };
    let names: Vec<&str> = failed.iter().map(|(name, _)| name.as_str()).collect();
    let found = format!("rejects {}: {why}", names.join(", "));
    let help = if why.contains("OOM") {
        "the server is full: raise `maxmemory`, or set `maxmemory-policy volatile-ttl`".to_owned()
    } else if ["can't run this command", "NOPERM", "ACL failure"]
        .iter()
        .any(|it| why.contains(it))
    {
        format!("the user needs the rights {RIGHTS}")
    } else {
        "the server cannot write: see its log".to_owned()
    };
    Finding::bad("commands", found, help)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Level;
    use super::*;
    use crate::request::Operation;
    use crate::script::{Families, Family, Script};

    /// Returns the commands that a script calls.
    fn commands(source: &str) -> BTreeSet<&str> {
        let calls = source.split("call('").skip(1);
        calls.filter_map(|rest| rest.split('\'').next()).collect()
    }

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let both = Families::from_iter([Family::Meter, Family::SlidingLog]);
        let holds = [Operation::Hold, Operation::Settle, Operation::Extend];
        let holds = holds.map(|operation| Script::of_holds(both, operation));
        let scripts = Script::common().chain([Script::of(both), Script::of_records()]);
        let reports = [Family::Meter, Family::SlidingLog];
        let reports = reports.map(|it| Script::of_reports(Families::from_iter([it])));
        let scripts = scripts.chain(holds).chain(reports);
        let used: BTreeSet<&str> = scripts.flat_map(|it| commands(&it.source)).collect();
        assert!(
            used.contains("MGET") && used.contains("GETRANGE"),
            "{used:?}"
        );
        let tried = COMMANDS.lines().map(str::trim);
        let tried = tried.filter_map(|line| line.strip_prefix("try('")?.split('\'').next());
        assert_eq!(tried.collect::<BTreeSet<&str>>(), used);
    }

    #[test]
    fn the_remedy_follows_the_first_error() {
        assert_eq!(judge(9, &[]).level, Level::Ok);
        for (why, remedy) in [
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                "maxmemory",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "+@write",
            ),
            ("MISCONF Redis is configured to save RDB snapshots", "log"),
        ] {
            let failed = judge(9, &[("SET".to_owned(), why.to_owned())]);
            assert!(failed.help.unwrap().contains(remedy), "{why}");
        }
    }
}
