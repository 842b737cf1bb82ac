//! One server: its queue, its breaker, and the workers that send requests to it.
//!
//! Each worker has a connection and one call in flight. Requests that arrive while all workers are busy leave
//! together in the next call; a single request leaves at once.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tollgate_core::Time;
use tollgate_store::{Applied, Breaker, BreakerState, GRACE, StoreError};

use crate::call_plan::{CallPlan, PlanKey, Role, Sharing};
use crate::connect::{ConnectError, ping, send};
use crate::error::Failure;
use crate::key_name::{KeyName, KeyNames};
use crate::metrics::Metrics;
use crate::options::{Address, ClockSource, Options};
use crate::reply::{Answer, Reply};
use crate::request::{Operation, Request};
use crate::room::Room;
use crate::script::Script;
use crate::store::Shared;

/// How often a request may be sent on to another server, because that server has its cluster slot.
const MAX_REDIRECTS: u8 = 5;

/// How long to wait before a request is sent again, if its keys are split between two servers.
const SPLIT_RETRY: Duration = Duration::from_millis(5);

/// How long Redis remembers a refund that must not happen twice.
const REMEMBERED_MILLIS: &str = "60000";

/// A queued request, and the channel for its answer.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) request: Request,
    /// The cluster slot of its keys; 0 outside a cluster.
    pub(crate) slot: u16,
    /// The key that remembers a refund that must not happen twice.
    pub(crate) once: Option<KeyName>,
    pub(crate) redirects: u8,
    /// Whether the cluster slot is being moved to this server, so that `ASKING` has to be sent.
    pub(crate) asking: bool,
    pub(crate) reply: oneshot::Sender<Result<Applied, StoreError>>,
}

impl Pending {
    /// Answers with an error and counts it. A caller that stopped waiting has counted a timeout already.
    fn fail(self, error: &StoreError, metrics: &Metrics) {
        if !self.reply.is_closed() {
            metrics.failed(self.request.script().name, error.kind());
        }
        let _ = self.reply.send(Err(error.clone()));
    }

    /// Whether the request may share a call with `other`.
    fn goes_with(&self, other: &Pending) -> bool {
        let operation = self.request.operation;
        matches!(operation, Operation::Apply | Operation::Report)
            && other.request.operation == operation
            && self.request.families == other.request.families
            && (self.slot, self.asking) == (other.slot, other.asking)
            // A call has one time.
            && self.request.at == other.request.at
    }
}

/// How to find a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// At this address.
    At(Address),
    /// The master that the Sentinels name.
    Master,
}

/// One server, with its breaker and the queue of its workers.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) target: Target,
    pub(crate) breaker: Arc<Breaker>,
    pub(crate) room: Arc<Room>,
    queue: mpsc::UnboundedSender<Pending>,
}

impl Node {
    /// Starts the workers of a server. The workers end when the node is dropped and its queue is empty.
    pub(crate) fn start(target: &Target, shared: &Arc<Shared>) -> Arc<Node> {
        let (queue, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let losses = Arc::new(AtomicU64::new(0));
        let breaker = Arc::new(Breaker::new(shared.options.breaker));
        let room = Arc::new(Room::new());
        let node = Arc::new(Node {
            target: target.clone(),
            breaker: Arc::clone(&breaker),
            room: Arc::clone(&room),
            queue,
        });
        for _ in 0..shared.options.max_connections {
            let worker = Worker {
                target: target.clone(),
                waiting: Arc::clone(&waiting),
                shared: Arc::downgrade(shared),
                options: Arc::clone(&shared.options),
                breaker: Arc::clone(&breaker),
                room: Arc::clone(&room),
                losses: Arc::clone(&losses),
                connection: None,
            };
            tokio::spawn(worker.run());
        }
        node
    }

    /// Returns the address, or `master` if Sentinels name the server.
    pub(crate) fn name(&self) -> String {
        match &self.target {
            Target::At(address) => address.to_string(),
            Target::Master => "master".to_owned(),
        }
    }

    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.breaker.state(Instant::now().into_std())
    }

    /// Puts a request into the queue. The caller bounds the number of queued requests.
    pub(crate) fn send(&self, pending: Pending) {
        // If there are no workers, because the runtime shuts down, the caller sees its channel closed.
        let _ = self.queue.send(pending);
    }
}

struct Worker {
    target: Target,
    waiting: Arc<Mutex<mpsc::UnboundedReceiver<Pending>>>,
    shared: Weak<Shared>,
    options: Arc<Options>,
    breaker: Arc<Breaker>,
    room: Arc<Room>,
    /// How many connections the workers of this server have lost.
    losses: Arc<AtomicU64>,
    connection: Option<Connected>,
}

/// A connection, and the count of lost connections when it last worked.
struct Connected {
    address: Address,
    connection: MultiplexedConnection,
    losses: u64,
}

impl Worker {
    async fn run(mut self) {
        loop {
            let next = timeout(self.options.idle_timeout, self.next_batch()).await;
            match next {
                Ok(Some(batch)) => self.send(batch).await,
                Ok(None) => return,
                Err(_) => self.connection = None,
            }
        }
    }

    /// Waits for requests, and returns as many as one call may have. Returns `None` once the queue is closed.
    async fn next_batch(&self) -> Option<Vec<Pending>> {
        let mut waiting = self.waiting.lock().await;
        let mut batch = vec![waiting.recv().await?];
        let mut keys = batch[0].request.keys();
        while batch.len() < self.options.batch
            && keys < MAX_KEYS
            && let Ok(more) = waiting.try_recv()
        {
            keys += more.request.keys();
            batch.push(more);
        }
        drop(waiting);
        // Requests whose callers stopped waiting are not sent, so they charge nothing.
        batch.retain(|pending| !pending.reply.is_closed());
        Some(batch)
    }

    async fn send(&mut self, mut batch: Vec<Pending>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        if batch.is_empty() {
            return;
        }
        let (address, connection) = match self.connect(&shared).await {
            Ok(connected) => connected,
            Err(error) => {
                shared.topology_may_have_changed();
                for pending in batch {
                    pending.fail(&error, &shared.metrics);
                }
                return;
            }
        };
        // Connecting may have taken longer than the callers waited. They have reported timeouts to the
        // breaker, but the server works.
        batch.retain(|pending| !pending.reply.is_closed());
        if batch.is_empty() {
            self.breaker.retry_now();
            return;
        }
        let mut groups: Vec<Vec<Pending>> = Vec::new();
        for pending in batch {
            match groups.iter_mut().find(|group| group[0].goes_with(&pending)) {
                Some(group) => group.push(pending),
                None => groups.push(vec![pending]),
            }
        }
        let calls = groups.into_iter().map(|group| Call {
            shared: &shared,
            address: &address,
            connection: connection.clone(),
            losses: &self.losses,
            room: &self.room,
            attempt: Attempt::default(),
            group,
        });
        let usable = join_all(calls.map(Call::run)).await;
        if usable.contains(&false) {
            self.connection = None;
        }
    }

    async fn connect(
        &mut self,
        shared: &Shared,
    ) -> Result<(Address, MultiplexedConnection), StoreError> {
        let losses = self.losses.load(Ordering::Acquire);
        if let Some(known) = &mut self.connection {
            // Another connection to this server was lost, so this one may be broken too: send a ping before a
            // request. A server found through Sentinels is looked up again, because another server may be the
            // master now.
            let works = known.losses == losses
                || self.target != Target::Master && ping(&mut known.connection).await.is_ok();
            if works {
                known.losses = losses;
                return Ok((known.address.clone(), known.connection.clone()));
            }
            self.connection = None;
        }
        let unavailable = |error: ConnectError| StoreError::Unavailable(error.to_string().into());
        let address = shared.address(&self.target).await.map_err(unavailable)?;
        let connection = shared.options.connect(&address).await;
        let connection = connection.map_err(unavailable)?;
        if self.target == Target::Master {
            shared.connected_to_master(&address);
        }
        self.connection = Some(Connected {
            address: address.clone(),
            connection: connection.clone(),
            losses,
        });
        Ok((address, connection))
    }
}

/// The most keys in a call, so that no call blocks the server for long.
const MAX_KEYS: usize = 512;

/// One call of the script, for requests of one cluster slot.
struct Call<'c> {
    shared: &'c Arc<Shared>,
    address: &'c Address,
    connection: MultiplexedConnection,
    losses: &'c AtomicU64,
    room: &'c Room,
    attempt: Attempt,
    group: Vec<Pending>,
}

/// What earlier attempts of a call have shown.
#[derive(Clone, Copy, Debug, Default)]
struct Attempt {
    /// The server is out of memory.
    is_full: bool,
    /// There is no room for the state of a new subject.
    is_crowded: bool,
    /// The server's clock differs from the clock of this process.
    is_elsewhen: bool,
}

impl Call<'_> {
    /// Makes the call and answers the requests. Returns false if the connection must not be used again.
    async fn run(mut self) -> bool {
        match self.call().await {
            // There is no room for the states of the remaining requests. So the next attempt names the shared
            // states of their rules.
            Ok(()) if !self.group.is_empty() => {
                self.attempt.is_crowded = true;
                Box::pin(self.run()).await
            }
            Ok(()) => true,
            Err(Failure::Full) => {
                self.room.note_full();
                if self.attempt.is_full || !self.group[0].request.fits_full_server() {
                    self.fail(&StoreError::Full);
                    return true;
                }
                self.attempt.is_full = true;
                Box::pin(self.run()).await
            }
            Err(Failure::Elsewhen(there)) => {
                self.room.compare_clocks(there, self.shared.now());
                if self.attempt.is_elsewhen {
                    let why = "the server's clock jumps between calls, so quotas cannot be decided";
                    self.fail(&StoreError::Unavailable(why.into()));
                    return true;
                }
                self.attempt.is_elsewhen = true;
                Box::pin(self.run()).await
            }
            // Some of the keys may still be on this server: try each request on its own.
            Err(Failure::Moved { asking: true, .. }) if self.group.len() > 1 => {
                self.each_alone().await
            }
            Err(Failure::Moved { address, asking }) => {
                self.follow(&address, asking);
                true
            }
            Err(Failure::UnknownScript) => {
                // The second attempt sent the source of the script, so a correct server never answers this.
                let why = "the server does not run a script that was sent to it";
                self.fail(&StoreError::Script(why.into()));
                true
            }
            // At least one request is split. Nothing was changed, so try each on its own.
            Err(Failure::Split) if self.group.len() > 1 => self.each_alone().await,
            Err(Failure::Split) => {
                self.retry_soon();
                true
            }
            Err(Failure::Failed {
                error,
                reconnect,
                refresh,
            }) => {
                if refresh {
                    self.shared.topology_may_have_changed();
                }
                if reconnect {
                    // Count the loss before callers are answered: their next request may come at once.
                    self.losses.fetch_add(1, Ordering::AcqRel);
                }
                self.fail(&error);
                !reconnect
            }
        }
    }

    async fn each_alone(&mut self) -> bool {
        let alone = std::mem::take(&mut self.group).into_iter().map(|pending| {
            let call = Call {
                shared: self.shared,
                address: self.address,
                connection: self.connection.clone(),
                losses: self.losses,
                room: self.room,
                attempt: self.attempt,
                group: vec![pending],
            };
            Box::pin(call.run())
        });
        !join_all(alone).await.contains(&false)
    }

    /// Queues the requests again after a moment: their keys may be on one server by then. A request is not
    /// sent if its caller has stopped waiting.
    fn retry_soon(&mut self) {
        for pending in self.group.drain(..) {
            let (shared, address) = (Arc::downgrade(self.shared), self.address.clone());
            tokio::spawn(async move {
                sleep(SPLIT_RETRY).await;
                // If the store is gone, the caller sees its channel closed.
                if let Some(shared) = shared.upgrade() {
                    shared.node_at(&address).send(pending);
                }
            });
        }
    }

    fn fail(&mut self, error: &StoreError) {
        for pending in self.group.drain(..) {
            pending.fail(error, &self.shared.metrics);
        }
    }

    /// Sends the requests to the server that has their cluster slot now.
    fn follow(&mut self, address: &Address, asking: bool) {
        if !asking {
            self.shared.topology_may_have_changed();
        }
        for mut pending in self.group.drain(..) {
            if pending.redirects == MAX_REDIRECTS {
                let why = "the cluster slot moved too often during the request";
                let error = StoreError::Unavailable(why.into());
                pending.fail(&error, &self.shared.metrics);
                continue;
            }
            pending.redirects += 1;
            pending.asking = asking;
            self.shared.node_at(address).send(pending);
        }
    }

    async fn call(&mut self) -> Result<(), Failure> {
        let requests: Vec<&Request> = self.group.iter().map(|it| &it.request).collect();
        // A server that was out of memory a moment ago most likely still is.
        self.attempt.is_full =
            requests[0].fits_full_server() && (self.attempt.is_full || self.room.is_full());
        let plan = self.plan(&requests);
        let script = requests[0].script();
        let started = Instant::now();
        let mut result = self.send(script, &plan, false).await;
        if let Err(Failure::UnknownScript) = &result {
            self.shared.metrics.failed(script.name, "noscript");
            result = self.send(script, &plan, true).await;
        }
        let (answered, took) = (result.is_ok(), started.elapsed());
        let metrics = &self.shared.metrics;
        metrics.called(script.name, answered, took, self.group.len());
        let reply = result?;
        self.answer_all(script, &plan, reply);
        Ok(())
    }

    fn plan(&self, requests: &[&Request]) -> CallPlan {
        let (states, naming) = (&self.shared.shared_states, &self.shared.naming);
        let names_all = self.attempt.is_full || self.attempt.is_crowded;
        let sharing = Sharing {
            naming,
            slot: self.group[0].slot,
            names_shared: &|item| names_all || states.has(naming, &item.name),
        };
        let at = requests[0].at;
        CallPlan::new(requests, &sharing, &|| match &self.shared.options.clock {
            ClockSource::Caller(_) if at > Time::default() => at,
            _ => self.shared.time_of(self.room),
        })
    }

    async fn send(
        &mut self,
        script: &Script,
        plan: &CallPlan,
        with_source: bool,
    ) -> Result<Value, Failure> {
        let (first, keys) = (&self.group[0], &plan.keys);
        let mut command = Cmd::with_capacity(keys.len() + 8, 256 + 96 * keys.len());
        if with_source {
            command.arg("EVAL").arg(&script.source);
        } else {
            command.arg("EVALSHA").arg(&script.sha);
        }
        let hold = first.request.hold_arguments.as_deref();
        let further = hold.map_or(0, |it| it.keys.len());
        command.arg(keys.len() + further + usize::from(first.once.is_some()));
        for key in keys {
            command.arg(&*self.name(*key));
        }
        for name in hold.iter().flat_map(|it| &it.keys).chain(&first.once) {
            command.arg(&**name);
        }
        let options = &self.shared.options;
        let now = match &options.clock {
            ClockSource::Store => Time::default(),
            ClockSource::Caller(_) if first.request.at > Time::default() => first.request.at,
            ClockSource::Caller(clock) => clock.now().max(Time::from_micros(1)),
        };
        let operation = first.request.operation;
        if hold.is_none_or(|it| it.script.is_none()) {
            let (ceilings, full) = (self.room.ceilings(), self.attempt.is_full);
            command.arg(plan.to_bytes(operation, now, options.margin, ceilings, full));
        }
        for argument in hold.iter().flat_map(|it| &it.arguments) {
            command.arg(argument);
        }
        match operation {
            Operation::Refund => {
                command.arg(first.request.charged_at.as_micros());
            }
            Operation::Restore | Operation::Adjust => {
                command.arg(first.request.numbers());
            }
            _ => {}
        }
        if first.once.is_some() {
            command.arg(REMEMBERED_MILLIS);
        }
        let asking = first.asking;
        send(&mut self.connection, self.address, &command, asking).await
    }

    /// Returns the name of a key.
    fn name(&self, key: PlanKey) -> Cow<'_, [u8]> {
        let pending = &self.group[key.request];
        let name = &pending.request.charges[key.charge].name;
        match key.role {
            Role::State => Cow::Borrowed(name),
            Role::Shared => {
                let shared = self.shared.naming.shared(name, pending.slot);
                Cow::Owned(shared.into_vec())
            }
            Role::Mark(id) => Cow::Owned(KeyNames::mark(name, id).into_vec()),
        }
    }

    /// Answers each request from the reply of the script.
    fn answer_all(&mut self, script: &Script, plan: &CallPlan, reply: Value) {
        if let Some(hold) = &self.group[0].request.hold_arguments {
            // Calls about holds read the reply themselves.
            *hold.reply.lock() = reply;
            for pending in self.group.drain(..) {
                let _ = pending.reply.send(Ok(Applied::default()));
            }
            return;
        }
        let numbers = match reply {
            Value::Array(numbers) => numbers,
            _ => Vec::new(),
        };
        let numbers = numbers.into_iter().map_while(|number| match number {
            Value::Int(number) => Some(number),
            _ => None,
        });
        let mut reply = Reply::new(numbers);
        let mut answers: Vec<Option<Result<Applied, StoreError>>> = vec![None; self.group.len()];
        let mut later = Vec::new();
        for run in &plan.runs {
            let requests: Vec<&Request> = run.iter().map(|it| &self.group[*it].request).collect();
            let Some(of_run) = reply.as_mut().and_then(|it| it.next_run(&requests)) else {
                // The rest of the reply cannot be read.
                reply = None;
                break;
            };
            for (number, answer) in run.iter().zip(of_run) {
                match answer {
                    Some(applied) => answers[*number] = Some(Ok(applied)),
                    None => later.push(*number),
                }
            }
        }
        let mut crowded = vec![false; self.group.len()];
        for number in later.iter().chain(&plan.others) {
            let request = &self.group[*number].request;
            match reply.as_mut().and_then(|it| it.next(request)) {
                Some(Answer::NoRoom) => {
                    crowded[*number] = true;
                    answers[*number] = Some(Err(StoreError::Full));
                }
                Some(answer) => {
                    answers[*number] = self.answer(plan, answer);
                    let shared = reply.iter().flat_map(|it| &it.shared);
                    self.note_shared(request, shared, answers[*number].as_ref());
                }
                None => break,
            }
        }
        let first_attempt = !self.attempt.is_crowded;
        let mut again = Vec::new();
        let group = std::mem::take(&mut self.group);
        for ((pending, answer), is_crowded) in group.into_iter().zip(answers).zip(crowded) {
            if is_crowded && first_attempt {
                again.push(pending);
                continue;
            }
            let why = "the reply of the script is too short";
            let answer = answer.unwrap_or_else(|| Err(StoreError::Script(why.into())));
            if let Err(error) = &answer {
                self.shared.metrics.failed(script.name, error.kind());
            }
            let _ = pending.reply.send(answer);
        }
        self.group = again;
    }

    /// Notes which charges of a request were decided by shared states, and how long these states live.
    fn note_shared<'r>(
        &self,
        request: &Request,
        shared: impl Iterator<Item = &'r usize>,
        answer: Option<&Result<Applied, StoreError>>,
    ) {
        let Some(Ok(applied)) = answer else {
            return;
        };
        for index in shared {
            let (item, outcome) = (request.charges.get(*index), applied.outcomes.get(*index));
            if let (Some(item), Some(outcome)) = (item, outcome) {
                // A quota that is not used yet has no reset time, so the current time is used. Each use notes
                // the shared state again.
                let until = outcome.reset_at.max(applied.now) + GRACE;
                let rule = self.shared.naming.rule_of(&item.name);
                self.shared.shared_states.note(&rule, until, true);
                self.shared.shared_states.count();
            }
        }
    }

    fn answer(&self, plan: &CallPlan, answer: Answer) -> Option<Result<Applied, StoreError>> {
        match answer {
            Answer::Applied(applied) => Some(Ok(applied)),
            Answer::Foreign(index) => {
                let name = plan.keys.get(index).map(|it| self.name(*it));
                let name = name.unwrap_or_default();
                let name = String::from_utf8_lossy(&name);
                Some(Err(StoreError::Foreign(name.into())))
            }
            Answer::NoRoom => None,
        }
    }
}
