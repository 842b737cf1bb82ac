//! What happens on the way to a server.

use std::thread::sleep;
use std::time::Duration;

use tollgate_redis::Options;
use tollgate_rig::{Fault as Trouble, Proxy, Redis};

use super::Stage;
use super::server::standalone;

/// A server behind a proxy, and what happens there.
struct Way {
    proxy: Proxy,
    _redis: Redis,
    trouble: Trouble,
}

impl Stage for Way {
    fn options(&self) -> Options {
        standalone(&self.proxy.address())
    }

    fn strike(&self, length: Duration) -> u64 {
        self.proxy.set(self.trouble);
        sleep(length);
        self.proxy.set(Trouble::None);
        0
    }
}

fn way(trouble: Trouble) -> Box<dyn Stage> {
    let redis = Redis::start();
    Box::new(Way {
        proxy: Proxy::to(&redis.address()),
        _redis: redis,
        trouble,
    })
}

pub(super) fn latency(_: Duration) -> Box<dyn Stage> {
    // Once on the way there, and once on the way back.
    way(Trouble::Latency(Duration::from_millis(100)))
}

pub(super) fn resets(_: Duration) -> Box<dyn Stage> {
    way(Trouble::Reset)
}

pub(super) fn black_hole(_: Duration) -> Box<dyn Stage> {
    way(Trouble::BlackHole)
}
