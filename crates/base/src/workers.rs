//! Processes many items in parallel: all of them, or up to the first error.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, IoContext, Result};

/// Calls `work` for each item, in order, with `jobs` calls in parallel. On the first error, starts
/// no further items, sets `stop` for the running ones, and returns the error.
pub fn for_each<T: Send>(
    items: impl IntoIterator<Item = T>,
    jobs: usize,
    stop: &AtomicBool,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let queue: VecDeque<T> = items.into_iter().collect();
    let workers = jobs.clamp(1, queue.len().max(1));
    let queue = Mutex::new(queue);
    let first_error = Mutex::new(None);
    let one = || {
        while !stop.load(Ordering::Relaxed) {
            let Some(item) = lock(&queue).pop_front() else {
                return;
            };
            if let Err(error) = work(item) {
                // Later errors are a consequence of `stop`.
                lock(&first_error).get_or_insert(error);
                stop.store(true, Ordering::Relaxed);
            }
        }
    };
    if workers == 1 {
        one();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..workers {
                std::thread::Builder::new()
                    .name("worker".to_owned())
                    .spawn_scoped(scope, one)
                    .doing(|| "cannot start a thread".to_owned())?;
            }
            Ok::<(), Error>(())
        })?;
    }
    match lock(&first_error).take() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Calls `work` for each item, with `jobs` calls in parallel, and returns the results in the order of
/// the items.
pub fn map<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    jobs: usize,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let items: Vec<T> = items.into_iter().collect();
    let workers = jobs.clamp(1, items.len().max(1));
    let next = Mutex::new(items.into_iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let one = || {
        loop {
            let item = lock(&next).next();
            let Some((number, item)) = item else { return };
            let result = work(item);
            lock(&done).insert(number, result);
        }
    };
    if workers == 1 {
        one();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(one);
            }
        });
    }
    std::mem::take(&mut *lock(&done)).into_values().collect()
}

/// Locks, ignoring poisoning: a panic in another thread is reported there.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_done_once_and_an_error_ends_it() {
        for jobs in [1, 3, 100] {
            let done = Mutex::new(Vec::new());
            for_each(0..50, jobs, &AtomicBool::new(false), |item| {
                lock(&done).push(item);
                Ok(())
            })
            .unwrap();
            let mut done = done.into_inner().unwrap();
            done.sort_unstable();
            assert_eq!(done, (0..50).collect::<Vec<_>>());
        }
        let stop = AtomicBool::new(false);
        let begun = Mutex::new(0);
        let error = for_each(0..1000, 2, &stop, |_| {
            *lock(&begun) += 1;
            Err(Error::failed("no"))
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "no");
        assert!(*lock(&begun) <= 2 && stop.load(Ordering::Relaxed));
        for_each([0; 0], 4, &AtomicBool::new(false), |_| Ok(())).unwrap();
    }

    #[test]
    fn results_have_the_order_of_the_items() {
        for jobs in [0, 1, 3, 100] {
            assert_eq!(map(0..50, jobs, |item| item * 2), (0..100).step_by(2).collect::<Vec<_>>());
        }
        assert!(map([0; 0], 4, |item| item).is_empty());
    }
}
