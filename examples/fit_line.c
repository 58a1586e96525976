/* The smallest training loop, without modules and optimizers: learns w = [1, 1, 1] from sums of three numbers.
 * usage: fit_line [DEVICE] */
#include <kiln.h>

int main(int argc, char **argv)
{
    kiln_device device = argc > 1 ? kiln_device_parse(argv[1]) : kiln_device_auto();
    if (device == KILN_NO_DEVICE || !kiln_set_default_device(device))
        return kiln_report(stderr);

    kiln_tensor *w = kiln_requires_grad(kiln_keep(kiln_zeros(KILN_SHAPE(1, 3), KILN_F32)), true);
    kiln_tensor *x = kiln_keep(kiln_randn(KILN_SHAPE(64, 3), KILN_F32));
    kiln_tensor *y = kiln_keep(kiln_sum(x, KILN_DIMS(1), true)); /* to be learned: w = [1, 1, 1] */

    for (int i = 0; i < 200; i++)
        kiln_step { /* what is made in here is released at its end */
            kiln_zero_grad_of(w);
            kiln_backward(kiln_mse_loss(kiln_linear(x, w, NULL), y, KILN_MEAN));
            kiln_no_grad
                kiln_assign(w, kiln_sub(w, kiln_mul_scalar(kiln_grad_of(w), 0.1)));
        }
    kiln_print(w, stdout);

    kiln_release(w);
    kiln_release(x);
    kiln_release(y);
    return kiln_report(stderr); /* the first error of all the above */
}
