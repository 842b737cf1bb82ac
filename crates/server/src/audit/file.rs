//! Appending to the trail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Adds `lines`, each with its end, in one write. The file is opened for that alone, so that whoever
/// moves it away finds the next entries in a new one.
pub(super) fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut file = open(path)?;
    if is_torn(&mut file)? {
        // What a crash has left of a line stays, and is a line of its own.
        return file.write_all(&[b"\n", lines].concat());
    }
    file.write_all(lines)
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true);
    match (options.open(path), path.parent()) {
        (Err(error), Some(directory)) if error.kind() == io::ErrorKind::NotFound => {
            fs::create_dir_all(directory)?;
            options.open(path)
        }
        (opened, _) => opened,
    }
}

/// Whether the last line has no end.
fn is_torn(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
