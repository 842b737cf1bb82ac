//! A no-op server of `CL.THROTTLE`: finds the end of each command, and answers a constant.

use std::error::Error;
use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Listen;

/// The shortest answer that allows.
const ANSWER: &[u8] = b"*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:0\r\n";
/// The answer to `CONFIG GET`, which redis-benchmark sends first.
const SETTING: &[u8] = b"*2\r\n$4\r\nsave\r\n$0\r\n\r\n";

pub(crate) fn run(listen: &Listen) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen.resp).await?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(serve(stream));
        }
    })
}

async fn serve(mut stream: TcpStream) -> io::Result<()> {
    let (mut input, mut output) = (Vec::with_capacity(16 * 1024), Vec::new());
    loop {
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
        let mut start = 0;
        while let Some(length) = command(&input[start..]) {
            let is_throttle = input[start..].starts_with(b"*5\r\n$11\r\nCL.THROTTLE");
            output.extend_from_slice(if is_throttle { ANSWER } else { SETTING });
            start += length;
        }
        input.drain(..start);
        stream.write_all(&output).await?;
        output.clear();
    }
}

/// Returns the length of the command at the start of `bytes`, if it is complete.
fn command(bytes: &[u8]) -> Option<usize> {
    let (count, mut at) = number(bytes, 1)?;
    for _ in 0..count {
        let (length, start) = number(bytes, at + 1)?;
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some(at)
}

fn number(bytes: &[u8], at: usize) -> Option<(usize, usize)> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().skip(at) {
        match byte {
            b'\r' => return Some((value, index + 2)),
            digit => value = value * 10 + usize::from(digit.wrapping_sub(b'0')),
        }
    }
    None
}
