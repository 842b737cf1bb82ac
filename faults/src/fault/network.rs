//! Faults of the network between the limiter and a server.

use std::thread::sleep;
use std::time::Duration;

use tollgate_redis::Options;
use tollgate_rig::{Fault as ProxyFault, Proxy, Redis};

use super::Stage;
use super::server::standalone;

/// A server behind a proxy, and the fault of the proxy.
struct Proxied {
    proxy: Proxy,
    _redis: Redis,
    fault: ProxyFault,
}

impl Stage for Proxied {
    fn options(&self) -> Options {
        standalone(&self.proxy.address())
    }

    fn strike(&self, length: Duration) -> u64 {
        self.proxy.set(self.fault);
        sleep(length);
        self.proxy.set(ProxyFault::None);
        0
    }
}

fn proxied(fault: ProxyFault) -> Box<dyn Stage> {
    let redis = Redis::start();
    Box::new(Proxied {
        proxy: Proxy::to(&redis.address()),
        _redis: redis,
        fault,
    })
}

pub(super) fn latency(_: Duration) -> Box<dyn Stage> {
    // The proxy delays the request and the answer.
    proxied(ProxyFault::Latency(Duration::from_millis(100)))
}

pub(super) fn resets(_: Duration) -> Box<dyn Stage> {
    proxied(ProxyFault::Reset)
}

pub(super) fn black_hole(_: Duration) -> Box<dyn Stage> {
    proxied(ProxyFault::BlackHole)
}
