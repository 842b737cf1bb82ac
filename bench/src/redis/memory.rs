//! Bytes per key at many keys. Each state has counted one request.

use std::error::Error;
use std::sync::Arc;

use redis::{Client, Pipeline};
use tollgate_core::Limit;
use tollgate_rig::Redis;

use super::callers::Side;
use super::traffic::{Rule, Traffic};

/// Measures the bytes per key of states under this limit, in a new server. Also returns the length of their names.
pub(super) fn of_states(
    rule: &'static str,
    limit: &Limit,
    keys: usize,
) -> Result<(f64, usize), Box<dyn Error>> {
    let servers = [Redis::start()];
    let side = Side::new(&servers)?;
    let before = servers[0].used_memory();
    let rule = Rule::new(rule, limit.clone(), keys);
    side.fill(&Arc::new(Traffic::new(vec![rule])), keys)?;
    let bytes = per_key(&servers[0], before, keys)?;
    let name = servers[0].connect().command(&["RANDOMKEY"]).text();
    Ok((bytes, name.len()))
}

/// Measures the bytes per key of plain keys with names of this length, the value 1, and an expiry.
pub(super) fn of_plain(length: usize, keys: usize) -> Result<f64, Box<dyn Error>> {
    const AT_ONCE: usize = 1000;
    let redis = Redis::start();
    let mut connection = Client::open(redis.url())?.get_connection()?;
    let before = redis.used_memory();
    for first in (0..keys).step_by(AT_ONCE) {
        let mut pipeline = Pipeline::with_capacity(AT_ONCE);
        for number in first..keys.min(first + AT_ONCE) {
            let name = format!("{number:0length$}");
            pipeline.cmd("SET").arg(name).arg(1);
            pipeline.arg("PX").arg(3_600_000).ignore();
        }
        pipeline.exec(&mut connection)?;
    }
    per_key(&redis, before, keys)
}

fn per_key(redis: &Redis, before: u64, keys: usize) -> Result<f64, Box<dyn Error>> {
    let used = redis.used_memory() - before;
    let kept = redis.connect().command(&["DBSIZE"]).int();
    if usize::try_from(kept) != Ok(keys) {
        return Err(format!("the server has {kept} keys instead of {keys}").into());
    }
    Ok(used as f64 / keys as f64)
}
