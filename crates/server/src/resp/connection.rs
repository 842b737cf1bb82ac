//! One client's connection: reads what is there, answers all of it, writes the answers in one go.

use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::bounds::{COMMAND_TIMEOUT, FAREWELL, MAX_OUTPUT};
use super::conversation::{Conversation, Step};
use super::input::Input;
use crate::net::READ_TIMEOUT;

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client wants it, or has gone.
    Client,
    /// The client broke the rules.
    Cut,
    /// The client was silent for too long, or took too long to send a command.
    Silent,
    /// The server stops.
    Stop,
}

/// Serves a client until one of the two has enough. When `stop` changes, what was read is answered, and
/// no more is read.
pub(super) async fn serve<S>(
    mut stream: S,
    mut conversation: Conversation,
    idle_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) -> io::Result<End>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut input, mut out) = (Input::new(), Vec::new());
    let stop_now = stop.clone();
    let mut stopped = pin!(stop.wait_for(|stop| *stop));
    let mut deadline = pin!(sleep(idle_timeout));
    // What the deadline is for: the rest of a command, or the next one.
    let mut was_partial = None;
    loop {
        let before = input.unread().len();
        let end = answer(&mut stream, &mut conversation, &mut input, &mut out).await?;
        if let Some(end) = end {
            if end == End::Cut {
                say_goodbye(&mut stream).await;
            }
            return Ok(end);
        }
        if stop_now.has_changed().unwrap_or(true) {
            return Ok(End::Stop);
        }
        let is_partial = !input.is_empty();
        if was_partial != Some(is_partial) || input.unread().len() < before {
            let patience = if is_partial || !conversation.is_logged_in() {
                COMMAND_TIMEOUT.min(idle_timeout)
            } else {
                idle_timeout
            };
            deadline.as_mut().reset(Instant::now() + patience);
            was_partial = Some(is_partial);
        }
        tokio::select! {
            // What is there is read before anything else is looked at.
            biased;
            read = stream.read_buf(input.room()) => {
                if read? == 0 {
                    return Ok(End::Client);
                }
            }
            () = &mut deadline => return Ok(End::Silent),
            _ = &mut stopped => return Ok(End::Stop),
        }
    }
}

/// Answers everything that has arrived as a whole, and writes the answers.
async fn answer<S>(
    stream: &mut S,
    conversation: &mut Conversation,
    input: &mut Input,
    out: &mut Vec<u8>,
) -> io::Result<Option<End>>
where
    S: AsyncWrite + Unpin,
{
    loop {
        let step = conversation.answer(input, out);
        if step == Step::Ask {
            conversation.ask(out).await;
            continue;
        }
        write(stream, out).await?;
        match step {
            Step::Read => return Ok(None),
            Step::Write | Step::Ask => {}
            Step::Close => return Ok(Some(End::Client)),
            Step::Cut => return Ok(Some(End::Cut)),
        }
    }
}

/// Writes all of `out`, and empties it. A client that does not take its answers is cut off.
async fn write<S>(stream: &mut S, out: &mut Vec<u8>) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
{
    if out.is_empty() {
        return Ok(());
    }
    {
        let mut writing = pin!(async {
            stream.write_all(out).await?;
            stream.flush().await
        });
        // Most answers are taken at once: only the others need a clock.
        let at_once = std::future::poll_fn(|context| Poll::Ready(writing.as_mut().poll(context)));
        match at_once.await {
            Poll::Ready(written) => written?,
            Poll::Pending => timeout(READ_TIMEOUT, writing)
                .await
                .map_err(|_| io::ErrorKind::TimedOut)??,
        }
    }
    out.clear();
    out.shrink_to(MAX_OUTPUT);
    Ok(())
}

/// Ends our side, and listens on for a while: a system that is sent what nobody reads tells the client
/// that the connection broke, and the client would not see why.
async fn say_goodbye<S>(stream: &mut S)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (patience, mut most) = FAREWELL;
    let farewell = async {
        stream.shutdown().await?;
        let mut ignored = [0; 1024];
        while most > 0 {
            let read = stream.read(&mut ignored).await?;
            if read == 0 {
                break;
            }
            most = most.saturating_sub(read);
        }
        Ok::<(), io::Error>(())
    };
    // However it ends, it ends.
    let _ = timeout(patience, farewell).await;
}
