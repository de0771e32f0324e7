//! How a line of text becomes arguments: Redis' `sdssplitargs`.
//!
//! Blanks separate. `"…"` may hold `\n \r \t \b \a`, `\xHH` and `\` before anything else; `'…'`
//! knows only `\'`. A closing quote must end its argument.

use bytes::Bytes;

/// `None`: the quotes don't match up.
pub fn split(line: &[u8]) -> Option<Vec<Bytes>> {
    let mut args = Vec::new();
    let mut rest = line;
    loop {
        let start = rest.iter().position(|byte| !is_space(*byte));
        let Some(start) = start else { return Some(args) };
        let (argument, behind) = argument(&rest[start..])?;
        args.push(argument);
        rest = behind;
    }
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn argument(line: &[u8]) -> Option<(Bytes, &[u8])> {
    let mut argument = Vec::new();
    let mut at = 0;
    while let Some(byte) = line.get(at).copied() {
        match byte {
            // The other two blanks end no argument, in Redis as here.
            b' ' | b'\n' | b'\r' | b'\t' => break,
            b'"' => return finish(double_quoted(&line[at + 1..], argument)?),
            b'\'' => return finish(single_quoted(&line[at + 1..], argument)?),
            byte => argument.push(byte),
        }
        at += 1;
    }
    Some((argument.into(), &line[at..]))
}

/// Behind a closing quote there must be a blank or nothing.
fn finish((argument, behind): (Vec<u8>, &[u8])) -> Option<(Bytes, &[u8])> {
    behind.first().is_none_or(|byte| is_space(*byte)).then(|| (argument.into(), behind))
}

fn double_quoted(mut rest: &[u8], mut argument: Vec<u8>) -> Option<(Vec<u8>, &[u8])> {
    loop {
        rest = match rest {
            [] => return None,
            [b'"', behind @ ..] => return Some((argument, behind)),
            [b'\\', b'x', high, low, behind @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                argument.push(hex(*high) << 4 | hex(*low));
                behind
            }
            [b'\\', escaped, behind @ ..] => {
                argument.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                behind
            }
            [byte, behind @ ..] => {
                argument.push(*byte);
                behind
            }
        };
    }
}

fn single_quoted(mut rest: &[u8], mut argument: Vec<u8>) -> Option<(Vec<u8>, &[u8])> {
    loop {
        rest = match rest {
            [] => return None,
            [b'\\', b'\'', behind @ ..] => {
                argument.push(b'\'');
                behind
            }
            [b'\'', behind @ ..] => return Some((argument, behind)),
            [byte, behind @ ..] => {
                argument.push(*byte);
                behind
            }
        };
    }
}

fn hex(digit: u8) -> u8 {
    char::from(digit).to_digit(16).unwrap_or(0) as u8
}
