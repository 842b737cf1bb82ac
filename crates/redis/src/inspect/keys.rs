//! Samples the keys of a server under the prefix of the config, bounded in number and time.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError, Value};
use tokio::time::Instant;

use super::ask;
use super::finding::{Finding, Level};
use crate::key_name::{Content, KeyNames, SLOTS};
use crate::options::Address;

/// The most keys in a sample.
const MOST: usize = 10_000;
/// The longest time for a sample.
const LONGEST: Duration = Duration::from_millis(200);
/// How many keys one `SCAN` goes through.
const PAGE: u64 = 1000;
/// With fewer keys than this, their distribution is not judged.
const ENOUGH: u64 = 1000;
/// How many rules a finding names.
const SHOWN: usize = 5;
/// The remedy for keys that are on too few servers.
const SPREAD: &str = "spread the keys of the rule with the most keys: write `placement: subject`";

/// A sample of the keys of a server.
#[derive(Debug, Default)]
pub(super) struct Sample {
    /// How many keys the server has, including those of other programs.
    size: u64,
    /// The approximate number of keys that were scanned.
    passed: u64,
    /// Whether all keys were scanned.
    complete: bool,
    /// Keys under the prefix. `SCAN` may return a key twice.
    keys: HashSet<Vec<u8>>,
    by_rule: HashMap<String, u64>,
    by_tag: HashMap<String, u64>,
    without_expiry: Examples,
    wrong_type: Examples,
    unknown: Examples,
}

/// A count of keys, and the first of them.
#[derive(Debug, Default)]
struct Examples {
    count: u64,
    first: String,
}

impl Examples {
    fn add(&mut self, key: &[u8]) {
        if self.count == 0 {
            self.first = key[..key.len().min(96)].escape_ascii().to_string();
        }
        self.count += 1;
    }
}

/// Scans the keys of a server until the sample is large enough or the time is over.
pub(super) async fn sample(
    connection: &mut MultiplexedConnection,
    naming: &KeyNames,
    prefix: &str,
) -> Result<Sample, RedisError> {
    let mut sample = Sample {
        size: ask(connection, &["DBSIZE"]).await?,
        ..Sample::default()
    };
    let (pattern, page) = (KeyNames::pattern(prefix), PAGE.to_string());
    let start = Instant::now();
    let mut cursor = "0".to_owned();
    while sample.keys.len() < MOST && start.elapsed() < LONGEST {
        let command = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", &page];
        let (next, mut keys): (String, Vec<Vec<u8>>) = ask(connection, &command).await?;
        keys.retain(|key| !sample.keys.contains(key));
        let room = MOST - sample.keys.len();
        let cut = keys.len() > room;
        keys.truncate(room);
        sample.passed += PAGE;
        for (key, kind, ttl) in describe(connection, keys).await? {
            sample.add(naming, key, &kind, ttl);
        }
        if next == "0" {
            sample.complete = !cut;
            break;
        }
        cursor = next;
    }
    Ok(sample)
}

/// Returns the type and the time to live of each key.
async fn describe(
    connection: &mut MultiplexedConnection,
    keys: Vec<Vec<u8>>,
) -> Result<Vec<(Vec<u8>, String, i64)>, RedisError> {
    let mut commands = Pipeline::with_capacity(2 * keys.len());
    for key in &keys {
        commands.cmd("TYPE").arg(key).cmd("PTTL").arg(key);
    }
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let answers = connection.send_packed_commands(&commands, 0, 2 * keys.len());
    let mut answers = answers.await?.into_iter();
    let mut next = || answers.next().unwrap_or(Value::Nil).extract_error();
    let described = keys.into_iter().map(|key| {
        let kind = redis::from_redis_value(next()?)?;
        let ttl = redis::from_redis_value(next()?)?;
        Ok((key, kind, ttl))
    });
    described.collect()
}

impl Sample {
    /// Adds a key of this type. `ttl` is in milliseconds; -1 means that the key does not expire, and -2 that
    /// it no longer exists.
    fn add(&mut self, naming: &KeyNames, key: Vec<u8>, kind: &str, ttl: i64) {
        if kind == "none" || ttl == -2 || self.keys.contains(&key) {
            return;
        }
        let parsed = naming.parse(&key);
        let content = parsed.map(|(_, content)| content);
        let is_lasting = matches!(
            content,
            Some(
                Content::Overrides
                    | Content::Configs
                    | Content::Instances
                    | Content::Audit
                    | Content::Deployment
            )
        );
        if ttl == -1 && !is_lasting {
            self.without_expiry.add(&key);
        }
        let expected = match content {
            Some(
                Content::Overrides | Content::Configs | Content::Instances | Content::Deployment,
            ) => "hash",
            Some(Content::Audit) => "list",
            Some(Content::Slots(_) | Content::Due | Content::Open | Content::SharedIndex) => "zset",
            Some(Content::State(_) | Content::Mark(_) | Content::Undone | Content::Hold) | None => {
                "string"
            }
        };
        if kind != expected {
            self.wrong_type.add(&key);
        }
        match parsed {
            Some((tag, content)) => {
                *self.by_tag.entry(tag.to_owned()).or_default() += 1;
                let rule = content.rule().to_owned();
                *self.by_rule.entry(rule).or_default() += 1;
            }
            None => self.unknown.add(&key),
        }
        self.keys.insert(key);
    }

    fn count(&self) -> u64 {
        self.keys.len() as u64
    }

    /// Returns about how many keys under the prefix the server has.
    pub(super) fn estimate(&self) -> u64 {
        if self.complete || self.passed >= self.size {
            return self.count();
        }
        self.count().saturating_mul(self.size) / self.passed.max(1)
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings = vec![self.rules()];
        if self.keys.is_empty() {
            return findings;
        }
        let help = "Tollgate does not write such keys: find the program that does, and delete them";
        findings.push(match self.found("never expire", &self.without_expiry) {
            Some(found) => Finding::bad("expiry", found, help),
            None => Finding::ok("expiry", "every state expires by itself"),
        });
        let help = "another program writes under the prefix: delete these keys, and choose another \
                    `key_prefix`";
        let problem = "have a type that Tollgate does not use";
        findings.push(match self.found(problem, &self.wrong_type) {
            Some(found) => Finding::bad("type", found, help),
            None => Finding::ok("type", "every key has the expected type"),
        });
        findings.extend(self.placement());
        let help =
            "another program uses the prefix: choose a `key_prefix` that no other program uses";
        let unknown = self.found("were not written by Tollgate", &self.unknown);
        findings.extend(unknown.map(|found| Finding::warn("prefix", found, help)));
        findings
    }

    fn rules(&self) -> Finding {
        let mut rules: Vec<(&String, &u64)> = self.by_rule.iter().collect();
        rules.sort_unstable_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
        let shown = rules.iter().take(SHOWN);
        let shown = shown.map(|(name, count)| format!("{name} {count}"));
        let shown: Vec<String> = shown.collect();
        let mut found = format!("{} under the prefix", self.count());
        if !self.complete {
            found += &format!(" sampled, of about {}", self.estimate());
        }
        if !shown.is_empty() {
            found += &format!(": {}", shown.join(", "));
        }
        if rules.len() > SHOWN {
            found += &format!(" and {} more rules", rules.len() - SHOWN);
        }
        found += &format!("; the server has {} keys", self.size);
        Finding::ok("keys", found)
    }

    /// Describes keys with a problem, if there are any.
    fn found(&self, problem: &str, keys: &Examples) -> Option<String> {
        let (count, all, first) = (keys.count, self.count(), &keys.first);
        (count > 0).then(|| format!("{count} of {all} keys {problem}, such as {first}"))
    }

    /// Checks how the keys are spread over tags. Keys with the same tag are in one cluster slot, so they are
    /// on one server. Returns `None` if there are no keys of Tollgate.
    fn placement(&self) -> Option<Finding> {
        let (tag, most) = self.by_tag.iter().max_by_key(|(_, count)| **count)?;
        let (count, tags) = (self.count(), self.by_tag.len());
        let found = format!("{{{tag}}} has {most} of {count} keys, the most of {tags} tags");
        if count < ENOUGH || most * 2 <= count {
            return Some(Finding::ok("placement", found));
        }
        let found = format!("{found}; in a cluster they are all in one slot");
        Some(Finding::warn("placement", found, SPREAD))
    }
}

/// The share of a master in a cluster.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) address: Address,
    pub(super) slots: u64,
    /// About how many keys of Tollgate the master has.
    pub(super) keys: u64,
}

/// Checks whether the keys are distributed like the cluster slots. Returns `None` for a single master.
pub(super) fn balance(shares: &[Share]) -> Option<Finding> {
    if shares.len() < 2 {
        return None;
    }
    let all: u64 = shares.iter().map(|share| share.keys).sum();
    if all < ENOUGH {
        let found = format!("{all} keys are too few to judge");
        return Some(Finding::ok("balance", found));
    }
    // The number of keys per slot, times a million.
    let times = |share: &Share| u128::from(share.keys) * 1_000_000 / u128::from(share.slots.max(1));
    let fullest = shares.iter().max_by_key(|share| times(share))?;
    let keys = fullest.keys * 100 / all;
    let slots = fullest.slots * 100 / u64::from(SLOTS);
    let found = format!(
        "{} has the most: {keys}% of about {all} keys in {slots}% of the slots",
        fullest.address
    );
    let unfair = u128::from(fullest.keys) * u128::from(SLOTS)
        > 2 * u128::from(fullest.slots) * u128::from(all);
    let level = if unfair { Level::Warn } else { Level::Ok };
    Some(Finding::new(level, "balance", found, SPREAD))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tag: u64, subject: u64) -> Vec<u8> {
        format!("tg:v1:{{{tag:08x}}}:api:{subject:032x}:f").into_bytes()
    }

    fn sample_of(keys: impl IntoIterator<Item = Vec<u8>>) -> Sample {
        let naming = KeyNames::new("tg");
        let mut sample = Sample {
            complete: true,
            ..Sample::default()
        };
        for key in keys {
            sample.add(&naming, key, "string", 1000);
        }
        sample
    }

    #[test]
    fn a_tag_with_most_keys_is_a_warning() {
        let one = |count| (0..count).map(|subject| key(7, subject));
        let spread = |count| (0..count).map(|subject| key(8 + subject, subject));
        let level = |keys: Vec<Vec<u8>>| sample_of(keys).placement().unwrap().level;
        assert_eq!(level(one(999).collect()), Level::Ok);
        assert_eq!(level(one(1000).collect()), Level::Warn);
        assert_eq!(level(one(600).chain(spread(600)).collect()), Level::Ok);
        assert_eq!(level(one(601).chain(spread(600)).collect()), Level::Warn);
    }

    #[test]
    fn repeated_and_expired_keys_are_not_counted() {
        let naming = KeyNames::new("tg");
        let mut sample = sample_of([key(1, 1), key(1, 1), key(1, 2)]);
        sample.add(&naming, key(1, 3), "none", -2);
        assert_eq!(sample.count(), 2);
        assert_eq!(sample.by_rule["api"], 2);
    }

    #[test]
    fn keys_that_were_not_scanned_are_estimated() {
        let mut sample = sample_of((0..500).map(|subject| key(1, subject)));
        (sample.size, sample.passed) = (10_000, 1000);
        assert_eq!(sample.estimate(), 500);
        sample.complete = false;
        assert_eq!(sample.estimate(), 5000);
    }

    #[test]
    fn a_master_may_have_twice_its_share_of_keys() {
        let share = |port, slots, keys| Share {
            address: Address {
                host: "node".to_owned(),
                port,
            },
            slots,
            keys,
        };
        let level = |shares: &[Share]| balance(shares).map(|finding| finding.level);
        let fair = [share(1, 4096, 1000), share(2, 12288, 1000)];
        assert_eq!(level(&fair), Some(Level::Ok));
        let unfair = [share(1, 4096, 1001), share(2, 12288, 999)];
        assert_eq!(level(&unfair), Some(Level::Warn));
        let few = [share(1, 4096, 999), share(2, 12288, 0)];
        assert_eq!(level(&few), Some(Level::Ok));
        assert_eq!(level(&[share(1, 16384, 5000)]), None);
    }
}
