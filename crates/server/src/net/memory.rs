//! The memory that the clients of a door hold: requests that have not arrived in full, and answers
//! that the client has not taken, that is, not read yet.
//!
//! Each connection has an [`Account`]. The first [`FREE`] bytes of an account cost nothing, so most
//! connections never change the sum of the door. Beyond that, an account may grow to a quarter of
//! the bytes that are left at the door. So even if many connections hold as much as they may, some
//! bytes are left for the next connection: no client can take them all.
//!
//! A client may have many connections. All of them together may hold at most half of the bytes for large
//! answers, so clients at other addresses still get large answers.
//!
//! Several answers may share a page. A shared page counts once for each client, while one of the answers to this client
//! is not taken.
//!
//! Bytes are counted when they exist. If there is no room, a request is rejected, or waits before it
//! makes more bytes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{READ_TIMEOUT, client_of};

/// The most bytes that the connections of a door may hold in all, beyond the [`FREE`] bytes of each
/// connection. Answers that are being made when the bound is reached may exceed it.
pub const MAX_HELD: usize = 128 * 1024 * 1024;
/// The part of [`MAX_HELD`] that is kept for small answers.
const KEPT_FOR_SMALL: usize = MAX_HELD / 4;
/// The most bytes that the connections of one client may hold together, if a part of them is for large
/// answers. A client is an IPv4 address, or an IPv6 network of 64 bits.
pub const MAX_HELD_BY_CLIENT: usize = (MAX_HELD - KEPT_FOR_SMALL) / 2;
/// The most bytes that a connection may hold. It may hold fewer bytes while other connections hold
/// many.
pub const MAX_HELD_BY_CONNECTION: usize = 16 * 1024 * 1024;
/// The bytes that each connection may hold without being counted.
pub const FREE: usize = 32 * 1024;
/// How many bytes a request for a large answer counts as, until the answer is made. The request
/// counts as more bytes if recent answers of this kind were larger. Once the answer is made, its
/// own bytes count instead.
pub const LARGE_ANSWER: usize = 128 * 1024;
/// One connection may hold the bytes that are left at the door, divided by this number.
const SHARE: usize = 4;
/// How often the age of answers is checked.
const TICK: Duration = Duration::from_secs(4);
/// An answer that was not taken within this many ticks is [`READ_TIMEOUT`] old, or up to a tick
/// older.
const TICKS: usize = 6;
const _: () = assert!(TICK.as_secs() * (TICKS as u64 - 1) == READ_TIMEOUT.as_secs());

/// The memory of a door.
#[derive(Clone, Default)]
pub(crate) struct Memory(Arc<Sums>);

#[derive(Default)]
struct Sums {
    held: AtomicUsize,
    /// The size of recent large answers: grows at once with a larger answer, and falls slowly with
    /// smaller ones.
    large: AtomicUsize,
    /// What the clients that have connections hold.
    clients: Mutex<HashMap<IpAddr, Client>>,
}

/// A client that has connections.
#[derive(Default)]
struct Client {
    held: Arc<HeldByClient>,
    connections: usize,
}

/// What the connections of a client hold.
#[derive(Default)]
struct HeldByClient {
    /// Their bytes beyond the [`FREE`] bytes of each, and the bytes of their pages.
    bytes: AtomicUsize,
    /// The pages that they have not taken, each with its address.
    pages: Mutex<Vec<(usize, Weak<HeldPage>)>>,
}

impl Memory {
    /// Opens the account of a connection of `peer`.
    pub(crate) fn account(&self, peer: IpAddr) -> Account {
        let client = client_of(peer);
        let held_by_client = {
            let mut clients = self.0.clients.lock();
            let known = clients.entry(client).or_default();
            known.connections += 1;
            Arc::clone(&known.held)
        };
        Account(Arc::new(Held {
            memory: self.clone(),
            client,
            held_by_client,
            bytes: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            released: Notify::new(),
            tick: AtomicUsize::new(0),
            untaken: std::array::from_fn(|_| AtomicUsize::new(0)),
        }))
    }
}

/// The bytes that a connection holds.
#[derive(Clone)]
pub(crate) struct Account(Arc<Held>);

struct Held {
    memory: Memory,
    client: IpAddr,
    held_by_client: Arc<HeldByClient>,
    bytes: AtomicUsize,
    /// How many requests wait for room.
    waiting: AtomicUsize,
    released: Notify,
    tick: AtomicUsize,
    /// The parts of answers that were not taken, by the tick in which they were made.
    untaken: [AtomicUsize; TICKS],
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut clients = self.memory.0.clients.lock();
        if let Entry::Occupied(mut client) = clients.entry(self.client) {
            client.get_mut().connections -= 1;
            if client.get().connections == 0 {
                client.remove();
            }
        }
    }
}

impl Account {
    /// Counts `bytes` until the charge is dropped.
    pub(crate) fn charge(&self, bytes: usize) -> Charge {
        self.add(bytes);
        Charge {
            account: self.clone(),
            bytes,
        }
    }

    /// Counts a page of `bytes` that answers share, once for the client of this connection, until nobody holds the
    /// result. `at` is the address of the page: no other page has it meanwhile.
    pub(crate) fn hold_page(&self, at: usize, bytes: usize) -> Arc<HeldPage> {
        let client = &self.0.held_by_client;
        let mut pages = client.pages.lock();
        pages.retain(|(_, page)| page.strong_count() > 0);
        let known = pages.iter().find(|(known, _)| *known == at);
        if let Some(page) = known.and_then(|(_, page)| page.upgrade()) {
            return page;
        }
        self.0.memory.0.held.fetch_add(bytes, Ordering::Relaxed);
        client.bytes.fetch_add(bytes, Ordering::Relaxed);
        let page = Arc::new(HeldPage {
            account: self.clone(),
            bytes,
        });
        pages.push((at, Arc::downgrade(&page)));
        page
    }

    /// Returns whether `bytes` more may be held now; 0 stands for a small answer.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        let before = self.0.bytes.load(Ordering::Relaxed);
        let held = beyond_free(before + bytes);
        if held == 0 {
            return true;
        }
        let most = match bytes {
            0 => MAX_HELD,
            _ => {
                let by_client = self.0.held_by_client.bytes.load(Ordering::Relaxed);
                if by_client + held - beyond_free(before) > MAX_HELD_BY_CLIENT {
                    return false;
                }
                MAX_HELD - KEPT_FOR_SMALL
            }
        };
        let left = most.saturating_sub(self.0.memory.0.held.load(Ordering::Relaxed));
        held <= MAX_HELD_BY_CONNECTION.min(left / SHARE)
    }

    /// Returns what a request for a large answer counts as until the answer is made.
    pub(crate) fn large_answer(&self) -> usize {
        let large = self.0.memory.0.large.load(Ordering::Relaxed);
        large.clamp(LARGE_ANSWER, MAX_HELD_BY_CONNECTION / 2)
    }

    /// Notes the size of a large answer. Sizes that do not occur any more are forgotten.
    pub(crate) fn saw_large_answer(&self, bytes: usize) {
        let large = &self.0.memory.0.large;
        let before = large.load(Ordering::Relaxed);
        large.store(bytes.max(before - before / 64), Ordering::Relaxed);
    }

    /// Waits until `bytes` more may be held. Released bytes of other connections are noticed at the
    /// next tick.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        if self.has_room_for(bytes) {
            return;
        }
        let _waiting = Waiting::new(&self.0.waiting);
        loop {
            let mut released = std::pin::pin!(self.0.released.notified());
            released.as_mut().enable();
            if self.has_room_for(bytes) {
                return;
            }
            released.await;
        }
    }

    /// Returns once a part of an answer was not taken for [`READ_TIMEOUT`].
    pub(crate) async fn untaken(&self) {
        loop {
            tokio::time::sleep(TICK).await;
            let tick = self.0.tick.load(Ordering::Relaxed) + 1;
            // The counts form a ring: this one holds the parts of the oldest tick.
            if self.0.untaken[tick % TICKS].load(Ordering::Relaxed) > 0 {
                return;
            }
            self.0.tick.store(tick, Ordering::Relaxed);
            self.0.released.notify_waiters();
        }
    }

    fn add(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        let more = beyond_free(before + bytes) - beyond_free(before);
        if more > 0 {
            self.0.memory.0.held.fetch_add(more, Ordering::Relaxed);
            self.0
                .held_by_client
                .bytes
                .fetch_add(more, Ordering::Relaxed);
        }
    }

    fn remove(&self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let before = self.0.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let less = beyond_free(before) - beyond_free(before - bytes);
        if less > 0 {
            self.0.memory.0.held.fetch_sub(less, Ordering::Relaxed);
            self.0
                .held_by_client
                .bytes
                .fetch_sub(less, Ordering::Relaxed);
        }
        if self.0.waiting.load(Ordering::Relaxed) > 0 {
            self.0.released.notify_waiters();
        }
    }
}

fn beyond_free(bytes: usize) -> usize {
    bytes.saturating_sub(FREE)
}

/// Bytes that count until this is dropped.
pub(crate) struct Charge {
    account: Account,
    bytes: usize,
}

impl Charge {
    pub(crate) fn account(&self) -> &Account {
        &self.account
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the charge: `bytes` count from now on.
    pub(crate) fn set(&mut self, bytes: usize) {
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes);
        } else {
            self.account.remove(self.bytes - bytes);
        }
        self.bytes = bytes;
    }

    /// Splits off a charge of `bytes`. If this charge has fewer bytes, the missing bytes are
    /// counted now.
    pub(crate) fn split(&mut self, bytes: usize) -> Charge {
        let mut part = Charge {
            account: self.account.clone(),
            bytes: bytes.min(self.bytes),
        };
        self.bytes -= part.bytes;
        part.set(bytes);
        part
    }

    /// Marks these bytes as a part of an answer that has to be taken in time.
    pub(crate) fn in_time(self) -> Untaken {
        let tick = self.account.0.tick.load(Ordering::Relaxed) % TICKS;
        self.account.0.untaken[tick].fetch_add(1, Ordering::Relaxed);
        Untaken {
            charge: self,
            tick: Some(tick),
        }
    }

    /// Marks these bytes as a part of an answer that may be taken at any time.
    pub(crate) fn at_any_time(self) -> Untaken {
        Untaken {
            charge: self,
            tick: None,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.remove(self.bytes);
    }
}

/// Bytes of an answer that was not taken yet.
pub(crate) struct Untaken {
    charge: Charge,
    /// The tick in which the bytes were made; `None` if the client has no time limit for them.
    tick: Option<usize>,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some(tick) = self.tick {
            self.charge.account.0.untaken[tick].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A page that answers to one client share. It counts until this is dropped.
pub(crate) struct HeldPage {
    account: Account,
    bytes: usize,
}

impl Drop for HeldPage {
    fn drop(&mut self) {
        let Held {
            memory,
            held_by_client,
            ..
        } = &*self.account.0;
        memory.0.held.fetch_sub(self.bytes, Ordering::Relaxed);
        held_by_client
            .bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Counts a request that waits for room.
struct Waiting<'a>(&'a AtomicUsize);

impl Waiting<'_> {
    fn new(count: &AtomicUsize) -> Waiting<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    /// Returns the address of one of many clients.
    fn peer(number: u32) -> IpAddr {
        Ipv4Addr::from_bits(number).into()
    }

    fn total(memory: &Memory) -> usize {
        memory.0.held.load(Ordering::Relaxed)
    }

    #[test]
    fn large_answers_count_as_the_largest_of_late() {
        let account = Memory::default().account(PEER);
        assert_eq!(account.large_answer(), LARGE_ANSWER);
        account.saw_large_answer(1_000_000);
        account.saw_large_answer(10);
        assert!((950_000..1_000_000).contains(&account.large_answer()));
        account.saw_large_answer(usize::MAX / 2);
        assert_eq!(account.large_answer(), MAX_HELD_BY_CONNECTION / 2);
        for _ in 0..10_000 {
            account.saw_large_answer(10);
        }
        assert_eq!(account.large_answer(), LARGE_ANSWER);
    }

    #[test]
    fn first_bytes_of_a_connection_are_free_and_the_rest_counts_once() {
        let memory = Memory::default();
        let (one, other) = (memory.account(PEER), memory.account(PEER));
        let mut free = one.charge(FREE);
        let _free = other.charge(FREE);
        assert_eq!(total(&memory), 0);
        let more = one.charge(1000);
        assert_eq!(total(&memory), 1000);
        let part = free.split(FREE / 2);
        assert_eq!(total(&memory), 1000);
        drop(part);
        assert_eq!(total(&memory), 0);
        free.set(FREE);
        assert_eq!(total(&memory), 1000);
        drop((free, more));
        assert_eq!(total(&memory), 0);
    }

    #[test]
    fn connection_beyond_its_bound_has_no_room_and_others_have() {
        let memory = Memory::default();
        let (one, other) = (memory.account(PEER), memory.account(PEER));
        let charge = one.charge(FREE + MAX_HELD_BY_CONNECTION);
        assert!(one.has_room_for(0) && !one.has_room_for(1));
        let _more = one.charge(1);
        assert!(!one.has_room_for(0));
        assert!(other.has_room_for(LARGE_ANSWER));
        drop(charge);
        assert!(one.has_room_for(LARGE_ANSWER));
    }

    /// Even if many connections hold as much as they may, the next connection has room: for a large
    /// answer if there are hundreds of connections, and for small answers if there are thousands.
    #[test]
    fn greedy_connections_leave_room_for_others() {
        for (connections, step, need) in [(400, LARGE_ANSWER, LARGE_ANSWER), (10_000, 4096, FREE)] {
            let memory = Memory::default();
            let mut charges = Vec::new();
            let accounts: Vec<Account> = (0..connections)
                .map(|it| memory.account(peer(it)))
                .collect();
            loop {
                let before = charges.len();
                for account in &accounts {
                    if account.has_room_for(step) {
                        charges.push(account.charge(step));
                    }
                }
                if charges.len() == before {
                    break;
                }
            }
            assert!(total(&memory) <= MAX_HELD - KEPT_FOR_SMALL);
            let next = memory.account(PEER);
            assert!(next.has_room_for(need), "{connections}");
            // Small answers have separate room.
            let _small = next.charge(FREE + 100 * 1024);
            assert!(next.has_room_for(0), "{connections}");
        }
    }

    #[test]
    fn one_client_leaves_room_for_large_answers_of_others() {
        let memory = Memory::default();
        let accounts: Vec<Account> = (0..1000).map(|_| memory.account(PEER)).collect();
        let mut charges = Vec::new();
        for account in &accounts {
            while account.has_room_for(1024 * 1024) {
                charges.push(account.charge(1024 * 1024));
            }
        }
        assert!(total(&memory) <= MAX_HELD_BY_CLIENT);
        let other = memory.account(peer(1));
        assert!(other.has_room_for(4 * 1024 * 1024));
        // Small answers of the same client have room too.
        assert!(accounts[999].has_room_for(0));
        drop((charges, accounts));
        assert_eq!(memory.0.clients.lock().len(), 1, "only the other client");
        assert!(memory.account(PEER).has_room_for(LARGE_ANSWER));
    }

    #[test]
    fn page_counts_once_for_each_client_that_holds_it() {
        const PAGE: usize = 1_000_000;
        let memory = Memory::default();
        let (one, same) = (memory.account(PEER), memory.account(PEER));
        let pages = [one.hold_page(1, PAGE), same.hold_page(1, PAGE)];
        assert_eq!(total(&memory), PAGE);
        let other = memory.account(peer(1)).hold_page(1, PAGE);
        assert_eq!(total(&memory), 2 * PAGE);
        let next = same.hold_page(2, PAGE);
        assert_eq!(total(&memory), 3 * PAGE);
        drop(pages);
        assert_eq!(total(&memory), 2 * PAGE);
        drop((other, next));
        assert_eq!(total(&memory), 0);
    }

    /// A client that takes no page gets no more of them. Other clients do.
    #[test]
    fn client_with_many_pages_gets_no_further_one() {
        const PAGE: usize = 1_000_000;
        let memory = Memory::default();
        let mut held = Vec::new();
        for at in 0..1000 {
            let account = memory.account(PEER);
            if account.has_room_for(LARGE_ANSWER) {
                held.push(account.hold_page(at, PAGE));
            }
        }
        assert_eq!(held.len(), MAX_HELD_BY_CLIENT.div_ceil(PAGE));
        assert!(memory.account(PEER).has_room_for(0));
        assert!(memory.account(peer(1)).has_room_for(LARGE_ANSWER));
        drop(held);
        assert!(memory.account(PEER).has_room_for(LARGE_ANSWER));
    }

    #[test]
    fn client_is_forgotten_when_its_connections_end_at_the_same_time() {
        let memory = Memory::default();
        let open = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for number in 0..2_000 {
                        let account = memory.account(peer(number));
                        open.fetch_add(1, Ordering::SeqCst);
                        while open.load(Ordering::SeqCst) < 2 * (number as usize + 1) {
                            std::thread::yield_now();
                        }
                        drop(account);
                    }
                });
            }
        });
        assert_eq!(memory.0.clients.lock().len(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_until_its_connection_has_room() {
        let account = Memory::default().account(PEER);
        let charge = account.charge(MAX_HELD);
        let waiting = tokio::spawn({
            let account = account.clone();
            async move { account.wait_for_room(LARGE_ANSWER).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(charge);
        waiting.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn part_that_nobody_takes_is_noticed_after_the_read_timeout() {
        let account = Memory::default().account(PEER);
        // Any number of parts may be taken in time.
        let taking = async {
            for _ in 0..20 {
                let part = account.charge(1).in_time();
                tokio::time::sleep(READ_TIMEOUT - Duration::from_secs(1)).await;
                drop(part);
            }
        };
        tokio::select! {
            () = account.untaken() => panic!("all parts were taken"),
            () = taking => {}
        }
        let start = tokio::time::Instant::now();
        let _part = account.charge(1).in_time();
        account.untaken().await;
        assert!(start.elapsed() >= READ_TIMEOUT);
        assert!(start.elapsed() <= READ_TIMEOUT + TICK);
    }
}
