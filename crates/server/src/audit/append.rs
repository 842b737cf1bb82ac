//! Appending to the trail.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Appends `lines`, each with its line end, in one write. The file is opened for each write, so
/// that entries go to a new file after the old one was moved away.
pub(super) fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut file = open(path)?;
    if is_torn(&mut file)? {
        // The rest of a line that a crash has torn stays, as its own line.
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

/// Whether the last line lacks its end.
fn is_torn(file: &mut File) -> io::Result<bool> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(false);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}
