//! The RESP door: a server for ordinary Redis clients.
//!
//! `CL.THROTTLE` limits a key by numbers that come with the command, as redis-cell does. `TG.CHECK`,
//! `TG.PEEK`, `TG.REFUND`, reservations and leases follow the rules. The other commands are those
//! that clients and tools send when they connect.
//!
//! | file | knows |
//! |---|---|
//! | `frame`, `inline`, `input` | how a command looks on the wire |
//! | `catalogue`, `error` | which commands there are, and what is wrong with one |
//! | `throttle`, `check`, `holding` | the arguments of those that decide, reserve and lease |
//! | `session` | what one client has said so far, and what it gets for a command |
//! | `question` | commands that have to wait for a shared store |
//! | `conversation` | commands in, answers out, in order |
//! | `reply` | how an answer looks on the wire |
//! | `connection` | the socket, and patience |
//!
//! All commands that have arrived are answered before anything is written, and their answers leave
//! together. With state in this process a command costs no allocation. With a shared store, commands of
//! a connection that take are asked at the same time, and so travel together; others wait for those
//! before them.

pub mod bounds;
mod catalogue;
mod check;
mod connection;
mod conversation;
mod door;
mod error;
mod frame;
mod holding;
mod info;
mod inline;
mod input;
mod question;
pub(crate) mod reply;
mod session;
mod throttle;

use std::net::SocketAddr;
use std::sync::Arc;

use tollgate::Engine;

use self::connection::End;
use self::door::OpenConnection;
use crate::net::{self, ConnectionError, Listener, Stopping, Stream};

pub use self::conversation::{Conversation, Step};
pub use self::door::{Door, Options};
pub use self::input::Input;
pub use tollgate_config::ThrottleFailure;

/// Serves clients of `listener` until `stop` is ready, then answers the commands that were read and
/// closes.
///
/// The caller must call [`Engine::sweep`] from time to time, or expired state stays in memory.
pub async fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    let door = Door::new(engine, &options);
    let handle = move |stream, peer, stopping| client(stream, peer, Arc::clone(&door), stopping);
    net::serve(listener, handle, stop).await;
}

async fn client(
    stream: Stream,
    peer: SocketAddr,
    door: Arc<Door>,
    stopping: Stopping,
) -> Result<(), ConnectionError> {
    let _open = OpenConnection::new(&door);
    let (conversation, idle_timeout) = (door.conversation(), door.idle_timeout);
    match connection::serve(stream, conversation, idle_timeout, stopping).await? {
        End::Client | End::Stop => {}
        end => tracing::debug!(%peer, ?end, "connection ended"),
    }
    Ok(())
}
