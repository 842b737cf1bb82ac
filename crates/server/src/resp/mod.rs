//! The RESP door: a server for ordinary Redis clients.
//!
//! `CL.THROTTLE` limits a key by numbers that come with the command, as redis-cell does; `TG.CHECK`,
//! `TG.PEEK` and `TG.REFUND` go by the rules, and so do reservations and leases. The rest is what clients and tools send when they connect.
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

use std::pin::pin;
use std::sync::Arc;

use tokio::sync::watch;
use tollgate::Engine;

use self::bounds::DRAIN_TIMEOUT;
use self::connection::End;
use self::door::Present;
use crate::net::{Accepted, Listener};

pub use self::conversation::{Conversation, Step};
pub use self::door::{Door, Options};
pub use self::input::Input;
pub use tollgate_rules::ThrottleFailure;

/// Serves clients of `listener` until `stop` is ready, then answers the commands that were read and
/// closes.
///
/// Expired state is forgotten by [`Engine::sweep`], which somebody else has to call now and then.
pub async fn serve(
    listener: Listener,
    engine: Arc<Engine>,
    options: Options,
    stop: impl Future<Output = ()>,
) {
    let door = Door::new(engine, &options);
    let (stopping, stopped) = watch::channel(false);
    let mut stop = pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        tokio::spawn(client(accepted, Arc::clone(&door), stopped.clone()));
    }
    drop(listener);
    drop(stopped);
    stopping.send_replace(true);
    if tokio::time::timeout(DRAIN_TIMEOUT, stopping.closed())
        .await
        .is_err()
    {
        tracing::warn!("commands were still in flight after {DRAIN_TIMEOUT:?}");
    }
}

async fn client(accepted: Accepted, door: Arc<Door>, stop: watch::Receiver<bool>) {
    let peer = accepted.peer;
    let (stream, _place) = match accepted.handshake().await {
        Ok(accepted) => accepted,
        Err(error) => return tracing::debug!(%peer, %error, "no handshake"),
    };
    let _present = Present::new(&door);
    let served = connection::serve(stream, door.conversation(), door.idle_timeout, stop).await;
    match served {
        Ok(End::Client | End::Stop) => {}
        Ok(end) => tracing::debug!(%peer, ?end, "connection ended"),
        // A client that breaks off is its own affair.
        Err(error) => tracing::debug!(%peer, %error, "connection ended"),
    }
}
