/* Compiled kernels on disk: they come back as they were written, and nothing comes back that somebody else may have put
 * there, or that is not what it says. Needs no CUDA. */
#include "device/cuda/compile/cubins.c"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include "support/devices.h"
#include "support/skip.h"

static char root[] = "/tmp/kiln-cubins-XXXXXX";
static char folder[64], path[256];
static const char cubin[] = "not a cubin, but bytes as good as any";
static kiln_cuda_key key, other;

static int before(void **state)
{
    (void)state;
    if (!mkdtemp(strcpy(root, "/tmp/kiln-cubins-XXXXXX")))
        return -1;
    char name[NAME];
    snprintf(folder, sizeof folder, "%s/kiln", root);
    kiln_cuda_key_make(&key, (const char *const[]){"a text"}, 1);
    kiln_cuda_key_make(&other, (const char *const[]){"another"}, 1);
    file_name(name, &key);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    umask(022);
    return setenv("XDG_CACHE_HOME", root, 1);
}

static int after(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static bool is_there(const kiln_cuda_key *k)
{
    size_t bytes = 77;
    char *got = kiln_cuda_cubin_read(k, &bytes);
    bool right = got && bytes == sizeof cubin && memcmp(got, cubin, bytes) == 0;
    assert_true(right || (!got && bytes == 0));
    kiln_free(got);
    return right;
}

static void keep(void)
{
    kiln_cuda_cubin_write(&key, cubin, sizeof cubin);
}

static void expect_refused(const char *words)
{
    char why[256] = "";
    assert_false(kiln_cuda_cubins_kept(why, sizeof why));
    if (!strstr(why, words))
        fail_msg("expected \"%s\", got \"%s\"", words, why);
    assert_false(is_there(&key));
}

static void expect_kept(void)
{
    char why[256] = "";
    if (!kiln_cuda_cubins_kept(why, sizeof why))
        fail_msg("%s", why);
}

/* ---- Keys ---- */

static void test_keys(void **state)
{
    (void)state;
    /* "abc" and the byte that ends it, by sha256sum */
    static const uint8_t abc[32] = {0xdc, 0x11, 0x14, 0xcd, 0x07, 0x49, 0x14, 0xbd, 0x87, 0x2c, 0xc1,
                                    0xf9, 0xa2, 0x3e, 0xc9, 0x10, 0xea, 0x22, 0x03, 0xbc, 0x79, 0x77,
                                    0x9a, 0xb2, 0xe1, 0x7d, 0xa2, 0x57, 0x82, 0xa6, 0x24, 0xfc};
    kiln_cuda_key a, b, c;
    assert_true(kiln_cuda_key_make(&a, (const char *const[]){"abc"}, 1));
    assert_true(kiln_cuda_key_make(&b, (const char *const[]){"ab", "c"}, 2));
    assert_true(kiln_cuda_key_make(&c, (const char *const[]){"a", "bc"}, 2));
    assert_memory_equal(a.hash, abc, sizeof abc);
    assert_true(memcmp(&a, &b, sizeof a) && memcmp(&b, &c, sizeof b) && memcmp(&a, &c, sizeof a));
}

/* ---- Files ---- */

static void test_kept(void **state)
{
    (void)state;
    struct stat st;
    assert_false(is_there(&key)); /* nor is there a folder yet */
    assert_int_not_equal(stat(folder, &st), 0);
    keep();
    assert_true(is_there(&key) && !is_there(&other));
    assert_true(stat(folder, &st) == 0 && (st.st_mode & 0777) == 0700);
    assert_true(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    keep(); /* again */
    assert_true(is_there(&key));
    expect_kept();
}

/* A kernel under another one's name, and one whose header lies about what it is. */
static void test_wrong_key(void **state)
{
    (void)state;
    char name[NAME], elsewhere[256];
    keep();
    file_name(name, &other);
    snprintf(elsewhere, sizeof elsewhere, "%s/%s", folder, name);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_true(!is_there(&other) && !is_there(&key));
}

static void change_byte(long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(byte ^ 1, f);
    assert_int_equal(fclose(f), 0);
}

static void test_damaged(void **state)
{
    (void)state;
    long size = (long)(sizeof(file_header) + sizeof cubin);
    for (long at = 0; at < size; at++) {
        keep();
        change_byte(at);
        assert_false(is_there(&key));
    }
    for (long bytes = 0; bytes < size; bytes++) {
        keep();
        assert_int_equal(truncate(path, bytes), 0);
        assert_false(is_there(&key));
    }
    keep();
    assert_int_equal(truncate(path, size + 1), 0);
    assert_false(is_there(&key));
    keep();
    assert_true(is_there(&key)); /* a bad one is replaced */
}

/* ---- Who may write there ---- */

static void test_others_can_write(void **state)
{
    (void)state;
    keep();
    assert_int_equal(chmod(path, 0622), 0);
    assert_false(is_there(&key));
    assert_int_equal(chmod(path, 0644), 0);
    assert_true(is_there(&key)); /* others may read it */
    for (mode_t *mode = (mode_t[]){0770, 0707, 0777, 01777, 0}; *mode; mode++) {
        assert_int_equal(chmod(folder, *mode), 0);
        expect_refused("can be written to by others");
        assert_int_equal(unlink(path), 0);
        keep(); /* nor is anything put there */
        assert_int_not_equal(access(path, F_OK), 0);
        assert_int_equal(chmod(folder, 0755), 0);
        keep();
        assert_true(is_there(&key));
        expect_kept();
    }
}

static void test_belongs_to_another(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip_because("only root can give files away");
    keep();
    assert_int_equal(chown(path, 12345, 12345), 0);
    assert_false(is_there(&key));
    assert_int_equal(unlink(path), 0);
    keep();
    assert_true(is_there(&key));
    assert_int_equal(chown(folder, 12345, 12345), 0);
    expect_refused("belongs to another user");
}

static void test_no_plain_file(void **state)
{
    (void)state;
    char elsewhere[64];
    keep();
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", root);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_false(is_there(&key));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_false(is_there(&key)); /* and it does not wait */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_false(is_there(&key));
    keep();
    assert_false(is_there(&key));
}

/* ---- Where it is ---- */

static void test_where(void **state)
{
    (void)state;
    char at[128];
    FILE *f = fopen(folder, "w");
    assert_non_null(f);
    fclose(f);
    expect_refused("Not a directory");
    assert_int_equal(setenv("XDG_CACHE_HOME", "relative", 1), 0);
    assert_int_equal(setenv("HOME", root, 1), 0);
    keep();
    assert_true(is_there(&key));
    snprintf(at, sizeof at, "%s/.cache/kiln", root);
    assert_int_equal(access(at, F_OK), 0);
    assert_int_equal(unsetenv("HOME"), 0);
    expect_refused("neither XDG_CACHE_HOME nor HOME");
    keep();
}

#define cubins_test(f) cmocka_unit_test_setup_teardown(f, before, after)

int main(void)
{
    if (!has_sha()) {
        printf("skipped: %s\n", no_sha);
        return TEST_SKIPPED;
    }
    const struct CMUnitTest tests[] = {
        cubins_test(test_keys),
        cubins_test(test_kept),
        cubins_test(test_wrong_key),
        cubins_test(test_damaged),
        cubins_test(test_others_can_write),
        cubins_test(test_belongs_to_another),
        cubins_test(test_no_plain_file),
        cubins_test(test_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
