//! Whether the user may do what the scripts do, and whether the server does it.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};

use super::finding::Finding;
use crate::check::RIGHTS;

/// Tries every command of the scripts, in a way that changes nothing.
const COMMANDS: &str = include_str!("../../lua/commands.lua");

/// Tries the commands on `key`, which must not exist.
pub(super) async fn look(connection: &mut MultiplexedConnection, key: &[u8]) -> Finding {
    match run(connection, key).await {
        Ok((count, refused)) => judge(count, &refused),
        Err(error) => judge(0, &[("EVAL".to_owned(), error.to_string())]),
    }
}

/// How many commands were tried, and what was said to those that were refused.
async fn run(
    connection: &mut MultiplexedConnection,
    key: &[u8],
) -> Result<(usize, Vec<(String, String)>), RedisError> {
    let mut call = Cmd::new();
    call.arg("EVAL").arg(COMMANDS).arg(1).arg(key);
    let answer = connection.send_packed_command(&call).await?;
    Ok(redis::from_redis_value(answer.extract_error()?)?)
}

fn judge(count: usize, refused: &[(String, String)]) -> Finding {
    let Some((_, why)) = refused.first() else {
        let found = format!("takes all {count} that the scripts use");
        return Finding::ok("commands", found);
    };
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    let found = format!("refuses {}: {why}", names.join(", "));
    let help = if why.contains("OOM") {
        "it is full: raise `maxmemory`, or set `maxmemory-policy volatile-ttl`".to_owned()
    } else if ["can't run this command", "NOPERM", "ACL failure"]
        .iter()
        .any(|it| why.contains(it))
    {
        format!("the user needs the rights {RIGHTS}")
    } else {
        "the server does not write: its log says why".to_owned()
    };
    Finding::bad("commands", found, help)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::Level;
    use super::*;
    use crate::script::{Families, Family, Script};
    use crate::wire::Operation;

    /// The commands that a script calls, by `call('NAME'` and its kin.
    fn commands(source: &str) -> BTreeSet<&str> {
        let calls = source.split("call('").skip(1);
        calls.filter_map(|rest| rest.split('\'').next()).collect()
    }

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let mut used = BTreeSet::new();
        let scripts: Vec<_> = Script::common().collect();
        for script in &scripts {
            used.extend(commands(&script.source));
        }
        let mut both = Families::default();
        both.add(Family::Meter);
        both.add(Family::SlidingLog);
        let mixed = Script::of(both);
        used.extend(commands(&mixed.source));
        for operation in [Operation::Hold, Operation::Settle, Operation::Extend] {
            used.extend(commands(&Script::of_holds(both, operation).source));
        }
        used.extend(commands(&Script::of_records().source));
        assert!(
            used.contains("MGET") && used.contains("GETRANGE"),
            "{used:?}"
        );
        let tried: BTreeSet<&str> = COMMANDS
            .lines()
            .filter_map(|line| line.trim().strip_prefix("try('")?.split('\'').next())
            .collect();
        assert_eq!(tried, used);
    }

    #[test]
    fn the_remedy_is_that_of_the_first_refusal() {
        let refused = |why: &str| judge(9, &[("SET".to_owned(), why.to_owned())]);
        assert_eq!(judge(9, &[]).level, Level::Ok);
        let full = refused("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(full.help.unwrap().contains("maxmemory"));
        let forbidden =
            refused("ERR The user executing the script can't run this command or subcommand");
        assert!(forbidden.help.unwrap().contains("+@write"));
        let other = refused("MISCONF Redis is configured to save RDB snapshots");
        assert!(other.help.unwrap().contains("log"));
    }
}
