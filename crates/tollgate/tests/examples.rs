//! The programs in `examples/` run, and their assertions hold.

#[path = "../examples/own_store.rs"]
mod own_store;
#[allow(dead_code, reason = "the test calls `run` with the server of its own")]
#[path = "../examples/redis.rs"]
mod redis;
#[path = "../examples/reservation.rs"]
mod reservation;
#[path = "../examples/sync.rs"]
mod sync;

#[test]
fn the_synchronous_example_runs() {
    sync::main().unwrap();
}

#[test]
fn the_reservation_example_runs() {
    reservation::main().unwrap();
}

#[test]
fn the_example_of_an_own_store_runs() {
    own_store::main().unwrap();
}

#[tokio::test]
async fn the_redis_example_runs() {
    let server = tollgate_rig::Redis::start();
    redis::run(&server.url()).await.unwrap();
}
