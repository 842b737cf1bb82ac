//! One client's connection: reads what is there, answers all of it, writes the answers in one go.

use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use super::bounds::{COMMAND_TIMEOUT, FAREWELL, MAX_COMMAND, MAX_OUTPUT};
use super::conversation::{Conversation, Step};
use super::input::Input;
use crate::net::{READ_TIMEOUT, Stopping};

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

/// What a client is waited for.
#[derive(Clone, Copy)]
enum Wait {
    /// Its next command. The deadline is not moved with every command, which would cost a look at the
    /// clock: when it comes, who was heard since, and has logged in, gets another. So silence lasts for
    /// as long as it may, and up to twice that.
    Command { heard: bool },
    /// The rest of a command that has started to arrive.
    Rest,
}

/// Serves a client until one side ends the connection. When the server stops, commands that were read
/// are answered, and nothing more is read.
pub(super) async fn serve<S>(
    mut stream: S,
    mut conversation: Conversation,
    idle_timeout: Duration,
    stopping: Stopping,
) -> io::Result<End>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut input, mut out) = (Input::new(), Vec::new());
    let mut waiting = stopping.clone();
    let mut stopped = pin!(waiting.wait());
    let command_timeout = COMMAND_TIMEOUT.min(idle_timeout);
    let mut deadline = pin!(sleep(match conversation.is_logged_in() {
        true => idle_timeout,
        false => command_timeout,
    }));
    let mut wait = Wait::Command { heard: false };
    loop {
        let before = input.unread().len();
        let end = answer(&mut stream, &mut conversation, &mut input, &mut out).await?;
        if let Some(end) = end {
            if end == End::Cut {
                say_goodbye(&mut stream).await;
            }
            return Ok(end);
        }
        if stopping.is_stopping() {
            return Ok(End::Stop);
        }
        let progress = input.unread().len() < before;
        match wait {
            _ if input.is_empty() => wait = Wait::Command { heard: before > 0 },
            Wait::Rest if !progress => {}
            _ => {
                wait = Wait::Rest;
                deadline.as_mut().reset(Instant::now() + command_timeout);
            }
        }
        loop {
            tokio::select! {
                // What is there is read before anything else is looked at.
                biased;
                read = stream.read_buf(input.room()) => match read? {
                    0 => return Ok(End::Client),
                    _ => break,
                },
                () = &mut deadline => match wait {
                    Wait::Command { heard: true } if conversation.is_logged_in() => {
                        wait = Wait::Command { heard: false };
                        deadline.as_mut().reset(Instant::now() + idle_timeout);
                    }
                    Wait::Command { .. } | Wait::Rest => return Ok(End::Silent),
                },
                () = &mut stopped => return Ok(End::Stop),
            }
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
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let step = conversation.answer(input, out);
        if step == Step::Ask {
            if !conversation.may_take_long() {
                conversation.ask(out).await;
            } else if ask_for_long(stream, conversation, input, out).await? == Patience::Gone {
                return Ok(Some(End::Client));
            }
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

/// How a long wait ends.
#[derive(PartialEq, Eq)]
enum Patience {
    Answered,
    /// The client has gone.
    Gone,
}

/// Asks where others may have to be waited for. Who goes away meanwhile gives up what it waits for.
async fn ask_for_long<S>(
    stream: &mut S,
    conversation: &mut Conversation,
    input: &mut Input,
    out: &mut Vec<u8>,
) -> io::Result<Patience>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    // Those before it are not to wait as well.
    write(stream, out).await?;
    let mut asking = pin!(conversation.ask(out));
    while input.unread().len() < MAX_COMMAND {
        tokio::select! {
            biased;
            () = &mut asking => return Ok(Patience::Answered),
            read = stream.read_buf(input.room()) => if read? == 0 {
                return Ok(Patience::Gone);
            },
        }
    }
    asking.await;
    Ok(Patience::Answered)
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

#[cfg(test)]
mod tests;
