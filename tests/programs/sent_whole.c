/*
 * A pipeline that hiredis sends whole before it reads an answer: sent_whole HOST:PORT|SOCKET
 * COUNT BYTES. Ends with 0 if each of COUNT answers is the value of BYTES.
 */
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(redisContext *to, const char *what) {
    fprintf(stderr, "%s: %s\n", what, to ? to->errstr : "no memory");
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    char *port = strrchr(argv[1], ':');
    if (port)
        *port++ = 0;
    redisContext *to = port ? redisConnect(argv[1], atoi(port)) : redisConnectUnix(argv[1]);
    if (!to || to->err)
        return failed(to, argv[1]);
    long count = atol(argv[2]);
    size_t bytes = strtoul(argv[3], NULL, 10);
    char *value = malloc(bytes);
    if (!value)
        return failed(NULL, "the value");
    memset(value, 'x', bytes);
    redisReply *reply = redisCommand(to, "SET large %b", value, bytes);
    if (!reply || reply->type != REDIS_REPLY_STATUS)
        return failed(to, "SET");
    freeReplyObject(reply);

    for (long n = 0; n < count; n++)
        redisAppendCommand(to, "GET large");
    for (int done = 0; !done;)
        if (redisBufferWrite(to, &done) != REDIS_OK)
            return failed(to, "sending");
    for (long n = 0; n < count; n++) {
        if (redisGetReply(to, (void **)&reply) != REDIS_OK)
            return failed(to, "reading");
        if (reply->type != REDIS_REPLY_STRING || reply->len != bytes || memcmp(reply->str, value, bytes))
            return failed(to, "an answer is wrong");
        freeReplyObject(reply);
    }
    return 0;
}
