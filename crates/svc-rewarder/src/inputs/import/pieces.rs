//! Work on pieces of an import: made on all threads, taken in order.

use rayon::prelude::*;

/// Passes what `make` makes of each item to `take`, in the order of the items. The next pieces are made while the last ones are
/// taken, so up to two for each thread are in memory. The first error, by the order of the items, ends it.
pub(super) fn in_order<I: Sync, P: Send, E: Send>(
    items: &[I],
    make: impl Fn(&I) -> Result<P, E> + Sync,
    mut take: impl FnMut(P) -> Result<(), E> + Send,
) -> Result<(), E> {
    let mut made: Vec<Result<P, E>> = Vec::new();
    for some in items.chunks(rayon::current_num_threads()) {
        let (next, taken) = rayon::join(
            || some.par_iter().with_max_len(1).map(&make).collect(),
            || made.into_iter().try_for_each(|piece| take(piece?)),
        );
        taken?;
        made = next;
    }
    made.into_iter().try_for_each(|piece| take(piece?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_taken_in_order_up_to_the_first_error() {
        let items: Vec<u32> = (0..100).collect();
        for bad in [0, 1, 2, 50, 99, 100] {
            let mut taken = Vec::new();
            let done = in_order(
                &items,
                |item| if *item >= bad { Err(*item) } else { Ok(*item) },
                |piece| {
                    taken.push(piece);
                    Ok(())
                },
            );
            assert_eq!(done.err(), (bad < 100).then_some(bad));
            assert_eq!(taken, items[..bad as usize]);
        }
        let refused = in_order(&items, |item| Ok(*item), Err);
        assert_eq!(refused, Err(0), "an error of the taker");
    }
}
