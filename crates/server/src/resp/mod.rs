//! The RESP door: a server for ordinary Redis clients.
//!
//! `CL.THROTTLE` limits a key by numbers that come with the command, as redis-cell does. `TG.CHECK`,
//! `TG.PEEK`, `TG.REFUND`, reservations and leases follow the rules. The other commands are those
//! that clients and tools send when they connect.
//!
//! | file | holds |
//! |---|---|
//! | `frame`, `inline`, `input` | how a command looks on the wire |
//! | `catalogue`, `command_error` | the list of commands, and what can be wrong with one |
//! | `throttle`, `arguments` | the arguments of `CL.THROTTLE`, and of the `TG.*` commands |
//! | `session` | the state of one client, and the answer to its next command |
//! | `pending` | commands that wait for a shared store |
//! | `conversation` | commands in, answers out, in order |
//! | `reply` | how an answer looks on the wire |
//! | `connection` | the socket and its timeouts |
//!
//! All commands that have arrived are answered before anything is written, and their answers leave
//! together. With state in memory a command costs no allocation. With a shared store, charges of one
//! connection are sent to the store together. Other commands wait for the commands before them.

mod arguments;
pub mod bounds;
mod catalogue;
mod command_error;
mod connection;
mod conversation;
mod door;
mod frame;
mod info;
mod inline;
mod input;
mod pending;
pub(crate) mod reply;
mod session;
mod throttle;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::Engine;

use self::connection::End;
use self::door::OpenConnection;
use crate::net::{self, Listener};

pub use self::conversation::{Conversation, Step};
pub use self::door::{Door, Options};
pub use self::input::Input;
pub use tollgate_config::ThrottleFailure;

/// Serves clients of `listener` until `stop` is ready. The value of `stop` is the drain time: the door
/// serves for this long, and `INFO` says that it drains. Then it answers the commands that have begun to
/// arrive, and closes.
///
/// The caller must call [`Engine::sweep`](tollgate::Limiter::sweep) from time to time, or expired state stays in memory.
pub async fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    options: Options,
    stop: impl Future<Output = Duration>,
) {
    let attempts = Arc::clone(listener.attempts());
    let metrics = Arc::clone(listener.metrics());
    let door = Door::counting_in(engine, &options, attempts, metrics);
    let stop = async {
        let drain = stop.await;
        door.draining.store(true, Ordering::Relaxed);
        drain
    };
    let serving = Arc::clone(&door);
    let handle = move |stream, peer: SocketAddr, stopping| {
        let door = Arc::clone(&serving);
        async move {
            let _open = OpenConnection::new(&door);
            let conversation = door.conversation_with(peer.ip());
            let account = door.memory.account(peer.ip());
            let idle_timeout = door.idle_timeout;
            match connection::serve(stream, conversation, account, idle_timeout, stopping).await? {
                End::Client | End::Stop => {}
                end => tracing::debug!(%peer, ?end, "connection ended"),
            }
            Ok(())
        }
    };
    net::serve(listener, handle, stop).await;
}
