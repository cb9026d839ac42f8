//! The options of the bench.

use crate::rows::Fault;

pub(crate) struct Options {
    pub(crate) repeats: usize,
    pub(crate) shards: usize,
    pub(crate) faults: Vec<Fault>,
}

impl Options {
    pub(crate) fn read(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { repeats: 5, shards: 3_000, faults: Fault::ALL.to_vec() };
        while let Some(word) = words.next() {
            // Added by cargo.
            if word == "--bench" {
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
            let bad = || format!("{word} {value}: no such thing");
            let number = || value.parse().ok().filter(|n| *n > 0).ok_or_else(bad);
            match word.as_str() {
                "--repeats" => options.repeats = number()?,
                "--shards" => options.shards = number()?,
                "--fault" => {
                    let known = |name| Fault::ALL.into_iter().find(|fault| fault.name() == name);
                    let wanted = value.split(',').map(|name| known(name).ok_or_else(bad));
                    options.faults = wanted.collect::<Result<_, _>>()?;
                }
                _ => return Err(bad()),
            }
        }
        Ok(options)
    }
}
